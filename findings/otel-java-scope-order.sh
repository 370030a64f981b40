#!/usr/bin/env bash
# io.opentelemetry:opentelemetry-context 1.68.0 (Java).
# Closing scopes in the wrong order is logged only at the level FINE, and puts a context that has ended back on the thread,
# for good: closing the outer scope does nothing, and closing the inner one restores the outer context. On a pool every later
# task of the thread then belongs to that trace. Closing the outer scope once more clears it.
# A good guess: when all scopes are closed, the thread has no context; a mistake is reported.
# Seen: "A" after both scopes were closed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
cat >pom.xml <<'POM'
<project>
  <modelVersion>4.0.0</modelVersion><groupId>finding</groupId><artifactId>finding</artifactId><version>1</version>
  <dependencies><dependency>
    <groupId>io.opentelemetry</groupId><artifactId>opentelemetry-context</artifactId><version>1.68.0</version>
  </dependency></dependencies>
</project>
POM
mvn --quiet --batch-mode -Dmaven.repo.local="$work/maven" dependency:copy-dependencies -DoutputDirectory="$work" >mvn.log 2>&1 ||
  { cat mvn.log; exit 1; }

cat >Main.java <<'JAVA'
import io.opentelemetry.context.Context;
import io.opentelemetry.context.ContextKey;
import io.opentelemetry.context.Scope;

public class Main {
  static final ContextKey<String> NAME = ContextKey.named("name");

  static void show(String after) {
    System.out.println(after + ": " + Context.current().get(NAME));
  }

  public static void main(String[] args) {
    Scope outer = Context.root().with(NAME, "A").makeCurrent();
    Scope inner = Context.root().with(NAME, "B").makeCurrent();
    outer.close();
    show("outer closed");
    inner.close();
    show("inner closed");
    outer.close();
    show("outer closed again");
  }
}
JAVA
got=$(java -cp "$work/*" Main.java 2>&1)

expected='outer closed: B
inner closed: A
outer closed again: null'
diff <(echo "$expected") <(echo "$got") || { echo "changed: scopes closed in the wrong order"; exit 1; }
echo "ok: scopes closed in the wrong order leave an ended context on the thread"
