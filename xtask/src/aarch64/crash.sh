# Crashes a process and dumps its core.
cd /tmp
ulimit -c unlimited
/bin/otelctx demo-service --parent=$$ > /dev/null &
service=$!
sleep 3
kill -ABRT $service
wait $service
/bin/otelctx dump --core core --stacks || echo 'guest: FAILED dump of a core'
