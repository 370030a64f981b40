# Runs the command's demo, and its subcommands on the demo's service. The demo may exit with 1 because a thread did not stop
# in time, and dump and check have longer deadlines than by default: the machine is emulated, and its host may be busy. Both
# services get the lowest priority, the demo's own one once its threads have started. One dump may find every worker between
# two requests.
echo 'guest: the command'
/bin/otelctx demo --duration 1 &
demo=$!
for second in 1 2 3 4 5; do
sleep 1
for task in /proc/[0-9]*/task/*; do
read name < $task/comm
case $name in shop|worker-*) renice -n 19 -p ${task##*/} ;; esac
done
done
wait $demo || test $? = 1 || echo 'guest: FAILED demo'
sh -c 'renice -n 19 -p $$ && exec /bin/otelctx demo-service --parent='$$ > /dev/null &
service=$!
sleep 3
/bin/otelctx ps || echo 'guest: FAILED ps'
for attempt in 1 2 3 4 5 6 7 8; do
/bin/otelctx dump --deadline 120 $service > /tmp/dump || echo 'guest: FAILED dump'
grep -q http.route= /tmp/dump && break
done
cat /tmp/dump
/bin/otelctx check --deadline 120 $service || echo 'guest: FAILED check'
/bin/otelctx record -p $service -d 3 -o /tmp/profile.otlp || echo 'guest: FAILED record'
/bin/otelctx report /tmp/profile.otlp || echo 'guest: FAILED report'
kill $service
