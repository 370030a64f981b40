# Covers each closed folder with an open, empty one that holds only the checkout and the target folder, entry by entry: their
# own folders may be closed too. Arguments: HOME CHECKOUT TARGET COUNT CLOSED… COMMAND…
home=$1 checkout=$2 target=$3 count=$4
shift 4
if [ "$count" -gt 0 ]; then
    mkdir -p "$home/checkout" "$home/target"
    mount --bind "$checkout" "$home/checkout"
    mount --bind "$target" "$home/target"
    while [ "$count" -gt 0 ]; do
        mount -t tmpfs -o mode=755 otelctx "$1"
        shift
        count=$((count - 1))
    done
    show() {
        mkdir -p "$2"
        for entry in "$1"/* "$1"/.[!.]*; do
            place=$2/${entry##*/}
            if [ -d "$entry" ]; then mkdir -p "$place"; else : >> "$place"; fi
            mount --bind "$entry" "$place"
        done
    }
    show "$home/checkout" "$checkout"
    case $target in "$checkout"/*) ;; *) show "$home/target" "$target" ;; esac
    cd "$PWD"
fi
exec "$@"
