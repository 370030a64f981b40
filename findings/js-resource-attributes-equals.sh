#!/usr/bin/env bash
# @opentelemetry/resources 2.12.1 (JavaScript) beside opentelemetry-sdk 1.45.2 (Python): OTEL_RESOURCE_ATTRIBUTES.
# If one value holds "=" (base64, a label selector), or one pair is broken, JavaScript drops all attributes of the variable,
# and says so only to the diagnostics logger, which is off by default.
# A good guess: the value goes up to the next comma, and a bad pair costs that pair, as in Python and Go.
# Seen: {} in JavaScript, everything in Python.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check opentelemetry-sdk==1.45.2
npm init -y >/dev/null
npm install --silent --no-audit --no-fund --ignore-scripts @opentelemetry/resources@2.12.1 @opentelemetry/api@1.9.1

export OTEL_RESOURCE_ATTRIBUTES='deployment.environment.name=prod,selector=app=shop'
got=$(node -p "'JavaScript: ' + JSON.stringify(require('@opentelemetry/resources').envDetector.detect().attributes)" 2>&1
venv/bin/python -c "
from opentelemetry.sdk.resources import OTELResourceDetector
print('Python:', dict(OTELResourceDetector().detect().attributes))" 2>&1)

expected="JavaScript: {}
Python: {'deployment.environment.name': 'prod', 'selector': 'app=shop'}"
diff <(echo "$expected") <(echo "$got") || { echo "changed: OTEL_RESOURCE_ATTRIBUTES with an equals sign in a value"; exit 1; }
echo "ok: one equals sign in a value empties OTEL_RESOURCE_ATTRIBUTES in JavaScript"
