# Builds a kernel. Arguments: SOURCE OPTIONS JOBS KERNEL: the source's folder, options on top of `make tinyconfig`, and the
# file to write.
cd "$1"
# Without the job server of the cargo that started this.
unset MAKEFLAGS CARGO_MAKEFLAGS
make -s tinyconfig
# Of two settings of one option the later one counts.
printf '%s' "$2" >> .config
make -s olddefconfig
printf '%s' "$2" | grep '^CONFIG_' | while read -r option; do
    grep -qxF "$option" .config || { echo "the configuration rejected $option" >&2; exit 1; }
done
make -s "-j$3" bzImage
cp arch/x86/boot/bzImage "$4"
