#!/usr/bin/env bash
# tools.profiler:jfr-converter 4.2 and 4.5 with opentelemetry-proto 1.45.2 (Python): OTLP profiles, still "development".
# The schema was renumbered between the two. What 4.2 writes still decodes today without an error: field numbers and wire
# types happen to fit, so every sample has a value, but attributes have no names and stack indices point into no table.
# A good guess: a profile of an older schema fails to decode, or loses its unknown fields visibly.
# Seen: 0 stacks and a stack index, attributes named "" instead of "thread.name"; right with 4.5.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check opentelemetry-proto==1.45.2
item() { echo "<artifactItem><groupId>tools.profiler</groupId><artifactId>$1</artifactId><version>$2</version></artifactItem>"; }
cat >pom.xml <<POM
<project>
  <modelVersion>4.0.0</modelVersion><groupId>finding</groupId><artifactId>finding</artifactId><version>1</version>
  <build><plugins><plugin><artifactId>maven-dependency-plugin</artifactId><configuration>
    <artifactItems>$(item jfr-converter 4.2; item jfr-converter 4.5; item async-profiler 4.5)</artifactItems>
    <outputDirectory>.</outputDirectory>
  </configuration></plugin></plugins></build>
</project>
POM
mvn --quiet --batch-mode -Dmaven.repo.local="$work/maven" dependency:copy >mvn.log 2>&1 || { cat mvn.log; exit 1; }
unzip -q async-profiler-4.5.jar 'linux-*/*'

cat >Main.java <<'JAVA'
public class Main {
  static volatile long count;

  public static void main(String[] args) {
    long end = System.nanoTime() + 1_000_000_000L;
    while (System.nanoTime() < end) count++;
  }
}
JAVA
javac Main.java
case $(uname -m) in x86_64) arch=x64 ;; *) arch=arm64 ;; esac
java "-agentpath:$work/linux-$arch/libasyncProfiler.so=start,event=itimer,interval=5ms,file=cpu.jfr" Main >/dev/null
for v in 4.2 4.5; do java -jar "jfr-converter-$v.jar" --cpu --threads --output otlp cpu.jfr "$v.otlp" >/dev/null; done
got=$(venv/bin/python - <<'PY'
from opentelemetry.proto.profiles.v1development.profiles_pb2 import ProfilesData

for version in "4.2", "4.5":
    data = ProfilesData.FromString(open(f"{version}.otlp", "rb").read())
    tables = data.dictionary
    samples = data.resource_profiles[0].scope_profiles[0].profiles[0].samples
    names = {tables.string_table[a.key_strindex] for a in tables.attribute_table[1:]}
    inside = all(s.stack_index < max(1, len(tables.stack_table)) for s in samples)
    print(version, "samples:", len(samples) > 0, "stacks:", len(tables.stack_table) > 0, "indices inside:", inside, sorted(names))
PY
)

expected="4.2 samples: True stacks: False indices inside: False ['']
4.5 samples: True stacks: True indices inside: True ['thread.name']"
diff <(echo "$expected") <(echo "$got") || { echo "changed: OTLP profiles of two versions"; exit 1; }
echo "ok: OTLP profiles of a year ago decode without an error, to samples without stacks"
