#!/usr/bin/env bash
# tools.profiler:async-profiler 4.5 (Java) beside the JDK's own flight recorder.
# async-profiler writes each thread's name as it is at the end: samples taken under an earlier name count for the last one,
# and once main() has returned the main thread's samples are found under "DestroyJavaVM". JFR keeps the first name instead.
# A good guess: a sample has the name its thread had then, which is why pools rename their threads by task.
# Seen: "second" and "DestroyJavaVM" from async-profiler, "first" and "main" from JFR, of the same program.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
mvn --quiet --batch-mode -Dmaven.repo.local="$work/maven" dependency:copy \
  -Dartifact=tools.profiler:async-profiler:4.5 -DoutputDirectory="$work" >mvn.log 2>&1 || { cat mvn.log; exit 1; }
unzip -q async-profiler-4.5.jar 'linux-*/*'

cat >Main.java <<'JAVA'
public class Main {
  static volatile long count;

  static void busy() {
    long end = System.nanoTime() + 1_000_000_000L;
    while (System.nanoTime() < end) count++;
  }

  public static void main(String[] args) throws Exception {
    Thread thread = new Thread(() -> {
      busy();
      Thread.currentThread().setName("second");
      busy();
    }, "first");
    thread.start();
    busy();
    thread.join();
  }
}
JAVA
javac Main.java
case $(uname -m) in x86_64) arch=x64 ;; *) arch=arm64 ;; esac
java "-agentpath:$work/linux-$arch/libasyncProfiler.so=start,event=itimer,interval=5ms,file=async.jfr" Main >/dev/null
java -XX:StartFlightRecording=filename=jdk.jfr,settings=profile Main >/dev/null 2>&1
got=$(for f in async jdk; do
  jfr print --events jdk.ExecutionSample "$f.jfr" | grep -oE 'sampledThread = "(first|second|main|DestroyJavaVM)"' | sort -u | sed "s/^/$f: /"
done)

expected='async: sampledThread = "DestroyJavaVM"
async: sampledThread = "second"
jdk: sampledThread = "first"
jdk: sampledThread = "main"'
diff <(echo "$expected") <(echo "$got") || { echo "changed: names of threads in recordings"; exit 1; }
echo "ok: async-profiler gives samples the last name of their thread, JFR the first"
