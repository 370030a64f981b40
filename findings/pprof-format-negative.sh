#!/usr/bin/env bash
# pprof-format 2.3.2 (npm), the pprof encoder and decoder under Node.js profilers.
# It decodes negative sample values and label numbers as unsigned ones, just below 2^64. Negative values are ordinary: every
# profile that was made by subtracting a base has them. The encoded bytes are right; other tools read -3 from them.
# A good guess: decode(encode(p)) gives p; int64 in profile.proto is signed.
# Seen: -3 becomes 18446744073709551613.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
npm init -y >/dev/null
npm install --silent --no-audit --no-fund --ignore-scripts pprof-format@2.3.2

cat >main.cjs <<'JS'
const { Profile, Sample, Label, StringTable, ValueType } = require('pprof-format')
const stringTable = new StringTable()
const profile = new Profile({
  stringTable,
  sampleType: [new ValueType({ type: stringTable.dedup('cpu'), unit: stringTable.dedup('nanoseconds') })],
  sample: [new Sample({ value: [3] }), new Sample({ value: [-3], label: [new Label({ key: 1, num: -3 })] })],
})
for (const { value, label } of Profile.decode(profile.encode()).sample)
  console.log(String(value[0]), label.map(l => `label ${l.num}`).join())
JS
got=$(node main.cjs)

expected='3 
18446744073709551613 label 18446744073709551613'
diff <(echo "$expected") <(echo "$got") || { echo "changed: decoding of negative values"; exit 1; }
echo "ok: pprof-format decodes negative sample values as unsigned"
