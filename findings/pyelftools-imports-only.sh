#!/usr/bin/env bash
# pyelftools 0.33 beside lief 1.0.0.
# DynamicSegment, the view for files without section headers or images from memory, takes the number of dynamic symbols from
# the GNU hash table, which holds defined symbols only. A library that imports but exports nothing has no symbols there.
# A good guess: the dynamic segment gives the same symbols as .dynsym, since the loader sees nothing else.
# Seen: one symbol (the null symbol) by the segment, two by the section; lief finds "puts" without the section headers.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check pyelftools==0.33 lief==1.0.0

cat >imports.c <<'C'
int puts(const char *);
static void hello(void) { puts("hello"); }
static void (*volatile const entry)(void) __attribute__((used)) = hello;
C
cat >exports.c <<'C'
int puts(const char *);
void hello(void) { puts("hello"); }
C
for f in imports exports; do gcc -shared -fPIC -nostdlib -Wl,--hash-style=gnu "$f.c" -o "$f.so"; done
cat >main.py <<'PY'
import lief
from elftools.elf.elffile import ELFFile

lief.logging.disable()
for name in "exports", "imports":
    data = bytearray(open(f"{name}.so", "rb").read())
    elf = ELFFile(open(f"{name}.so", "rb"))
    segment = next(s for s in elf.iter_segments() if s["p_type"] == "PT_DYNAMIC")
    section = elf.get_section_by_name(".dynsym")
    data[40:48] = bytes(8)  # e_shoff
    data[60:64] = bytes(4)  # e_shnum, e_shstrndx
    symbols = lief.parse(list(data)).dynamic_symbols
    print(name, [s.name for s in section.iter_symbols()], [s.name for s in segment.iter_symbols()], [s.name for s in symbols])
PY
got=$(venv/bin/python main.py)

expected="exports ['', 'puts', 'hello'] ['', 'puts', 'hello'] ['', 'puts', 'hello']
imports ['', 'puts'] [''] ['', 'puts']"
diff <(echo "$expected") <(echo "$got") || { echo "changed: dynamic symbols by segment"; exit 1; }
echo "ok: pyelftools' dynamic segment loses the imports of a library that exports nothing"
