#!/usr/bin/env bash
# mold 1.10.1 (Debian 12), python-zstandard 0.25.0: debug sections that the linker compresses with --compress-debug-sections=zstd.
# Each MiB of such a section is a zstd frame of its own, one behind the other. The header's ch_size is the size of all.
# A good guess: a section is one frame, as those of objcopy are. A decoder for one frame then returns the first MiB, without an
# error: debug information that is cut, if the caller does not compare the size.
# Seen: more than one frame in .debug_info; decompress() returns less than ch_size; all frames together are ch_size bytes.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
(
    mkdir package
    cd package
    apt-get -qq download mold=1.10.1+dfsg-1 2>/dev/null
    dpkg -x mold_*.deb .
    # Its libraries that a machine may lack.
    apt-get -qq download libtbb12 libtbbmalloc2 libmimalloc2.0 2>/dev/null || true
    for file in lib*.deb; do [ ! -e "$file" ] || dpkg -x "$file" .; done
) >/dev/null
export LD_LIBRARY_PATH="$work/package/usr/lib/$(uname -m)-linux-gnu"
python3 -m venv venv
venv/bin/pip -q install zstandard==0.25.0

# Some 2 MiB of debug information.
for file in 1 2 3; do
    for number in $(seq 6000); do
        echo "struct s$number { int a$number; double b$number; char c$number[$number]; };" \
            "int function_${file}_$number(struct s$number *value) { return value->a$number + (int)value->b$number; }"
    done >"$file.c"
    gcc -g -c "$file.c" -o "$file.o"
done
echo 'int main(void) { return 0; }' >main.c
gcc -g -c main.c -o main.o
gcc -B"$work/package/usr/libexec/mold" -fuse-ld=mold -Wl,--compress-debug-sections=zstd ./*.o -o program

venv/bin/python - program <<'PYTHON'
import struct
import sys
import zstandard

elf = open(sys.argv[1], "rb").read()
table, = struct.unpack_from("<Q", elf, 40)
count, names = struct.unpack_from("<HH", elf, 60)
sections = [struct.unpack_from("<IIQQQQIIQQ", elf, table + 64 * number) for number in range(count)]
name = lambda section: elf[sections[names][4] + section[0]:].split(b"\0")[0]
info = next(section for section in sections if name(section) == b".debug_info")
kind, _, size, _ = struct.unpack_from("<IIQQ", elf, info[4])
assert kind == 2, kind  # ELFCOMPRESS_ZSTD
rest = elf[info[4] + 24:info[4] + info[5]]

first = len(zstandard.ZstdDecompressor().decompress(rest, max_output_size=size))
frames, total = 0, 0
while rest:
    decoder = zstandard.ZstdDecompressor().decompressobj()
    total += len(decoder.decompress(rest))
    rest = decoder.unused_data
    frames += 1
line = f".debug_info has {size} bytes in {frames} frames; the first one has {first}, all have {total}"
if not (frames > 1 and first < size and total == size):
    sys.exit(f"changed: {line}")
print(f"ok: {line}")
PYTHON
