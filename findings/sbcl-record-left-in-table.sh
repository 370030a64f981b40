#!/usr/bin/env bash
# SBCL 2.2.9, linux/amd64: .eh_frame of call_into_lisp_, by which the runtime's C calls Lisp. For the callee it makes a second
# frame record (rbp twice, and rbp set to it), to which the table's expression for the frame's address leads: *(rbp). The callee
# removes that record when it returns, so rbp is the function's own frame again; but the table goes on to the function's end.
# A debugger that follows it takes the caller's frame for the function's, and leaves out the caller.
# A good guess: hand-written tables hold at the return address of the function's only call, which every unwinder looks up.
# Seen: at the return address, the frame returns to funcall1, and gdb shows new_thread_trampoline as the caller.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
command -v gdb >/dev/null || { echo "needs gdb"; exit 1; }
apt-get -qq download sbcl=2:2.2.9-1 2>/dev/null
dpkg -x sbcl_*.deb .
gdb() { command gdb -batch -nx "$@" usr/bin/sbcl 2>/dev/null; }

# Where its only call returns to, in bytes from the start.
returns=$(gdb -ex 'disassemble call_into_lisp_' | awk '/call  / {getline; print $2}' | tr -dc 0-9)
cat >commands <<GDB
set pagination off
set debuginfod enabled off
handle all nostop noprint pass
break *(call_into_lisp_ + $returns)
run --core usr/lib/sbcl/sbcl.core --no-sysinit --no-userinit --non-interactive --eval '(sleep 1)' >/dev/null
printf "returns to "
info symbol *(long *)(\$rbp + 8)
printf "by table "
up
info symbol \$pc
kill
GDB
# The first one to return is a thread of the runtime, which has no more to do.
got=$(gdb -x commands | sed -n 's/^\(returns to \)\{0,1\}\([a-z_0-9]*\) + [0-9]* in section .*/\1\2/p')

expected='returns to funcall1
new_thread_trampoline'
diff <(echo "$expected") <(echo "$got") || { echo "changed: the table of call_into_lisp_"; exit 1; }
echo "ok: behind its call, the table of call_into_lisp_ leads past the caller"
