#!/usr/bin/env bash
# ziglang 0.17.1 (PyPI; its `zig cc` is clang), pyelftools 0.33: the unwind table of a function whose unreachable code traps
# (-mllvm -trap-unreachable, as rustc sets it for all programs).
# The trap has the row of the function's first instruction: the canonical frame address is rsp+8 there, although the frame is
# set up before and after it. Unwinders that follow the table find a local variable as the return address, exactly at the
# instruction that a crash report of such a program starts from.
# A good guess: the trap has the row of the code around it, rbp+16.
# Seen: see "expected" below.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check ziglang==0.17.1 pyelftools==0.33

cat >pick.c <<'C'
unsigned long values[4];
unsigned long pick(unsigned kind, unsigned long x)
{
    switch (kind) {
    case 0: return x + values[1];
    case 1: return x * values[2];
    case 2: return x - values[3];
    case 3: return x ^ values[0];
    case 4: return x + 40;
    default: __builtin_unreachable();
    }
}
C
export ZIG_GLOBAL_CACHE_DIR="$work/cache" ZIG_LOCAL_CACHE_DIR="$work/cache"
venv/bin/python -m ziglang cc -target x86_64-linux-gnu.2.36 -O0 -fno-sanitize=all -fno-omit-frame-pointer \
    -fno-stack-protector -mllvm -trap-unreachable -c pick.c -o pick.o

cat >rows.py <<'PY'
from elftools.dwarf.callframe import FDE
from elftools.elf.elffile import ELFFile

with open("pick.o", "rb") as file:
    elf = ELFFile(file)
    names = [section.name for section in elf.iter_sections()]
    code = next(elf.get_section_by_name(name).data() for name in (".text.pick", ".text") if name in names)
    trap = code.index(b"\x0f\x0b")
    function, = (entry for entry in elf.get_dwarf_info().EH_CFI_entries() if isinstance(entry, FDE))
    registers = {6: "rbp", 7: "rsp"}
    table = function.get_decoded().table
    base = table[0]["pc"]
    for what, offset in ("before the trap", trap - 1), ("the trap", trap), ("after the trap", trap + 2):
        row = [row for row in table if row["pc"] - base <= offset][-1]
        print(f"{what}: {registers[row['cfa'].reg]}+{row['cfa'].offset}")
PY
cat >expected <<'END'
before the trap: rbp+16
the trap: rsp+8
after the trap: rbp+16
END
venv/bin/python rows.py >seen
diff -u expected seen
echo "ok: the trap has the unwind row of the function's start"
