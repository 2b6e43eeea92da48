# shellcheck shell=bash
# Kafka in KRaft mode: brokers that are controllers too. Sourced by cluster.sh.

KAFKA_CLUSTER_ID=4L6g3nShT-eMCtK--X86sw

kafka_port() { echo $((9091 + $1)); }
kafka_controller_port() { echo $((19091 + $1)); }

kafka_brokers() { cat "$RUN/kafka/brokers" 2>/dev/null || echo 0; }

kafka_bootstrap() {
  local id all=''
  for ((id = 1; id <= $(kafka_brokers); id++)); do all+="${all:+,}$ADDRESS:$(kafka_port "$id")"; done
  echo "$all"
}

kafka_up() {
  local brokers=$1 id voters='' present formatting=()
  present=$(kafka_brokers)
  if [ "$present" -ne 0 ] && [ "$present" -ne "$brokers" ]; then
    die "Kafka runs with $present broker(s); its quorum cannot change: 'cluster.sh down' first"
  fi
  mkdir -p "$RUN/kafka"
  for ((id = 1; id <= brokers; id++)); do voters+="${voters:+,}$id@$ADDRESS:$(kafka_controller_port "$id")"; done
  for ((id = 1; id <= brokers; id++)); do
    [ ! -e "$RUN/kafka/data$id/meta.properties" ] || continue
    kafka_properties "$id" "$brokers" "$voters" > "$RUN/kafka/$id.properties"
    kafka_java kafka.tools.StorageTool format -t $KAFKA_CLUSTER_ID -c "$RUN/kafka/$id.properties" \
      > "$RUN/logs/kafka$id.log" 2>&1 < /dev/null 8>&- &
    formatting+=($!)
  done
  for id in "${!formatting[@]}"; do
    wait "${formatting[id]}" || fail_with_log "kafka$((id + 1))" "the storage of Kafka broker $((id + 1)) could not be formatted"
  done
  echo "$brokers" > "$RUN/kafka/brokers"
  for ((id = 1; id <= brokers; id++)); do
    service "kafka$id" "${NET[@]}" java "${KAFKA_JVM[@]}" -Xms256m -Xmx512m -cp "$(kafka_classpath)" \
      kafka.Kafka "$RUN/kafka/$id.properties"
  done
  for ((id = 1; id <= brokers; id++)); do kafka_await "$id"; done
}

# Its port is open before it is a member whose topics others may be placed on; this line comes after.
kafka_await() { await 90 "kafka$1" kafka_started "$1"; }
kafka_started() { tac "$RUN/logs/kafka$1.log" | sed '/^--- started/q' | grep 'Kafka Server started'; }

# The quick compiler only, one collector thread, no huge young space: brokers for tests start often and work little.
KAFKA_JVM=(-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData -Xshare:auto -Djava.awt.headless=true
  -Dorg.slf4j.simpleLogger.defaultLogLevel=warn
  -Dorg.slf4j.simpleLogger.log.kafka.server.KafkaRaftServer=info -Dorg.slf4j.simpleLogger.showDateTime=true
  "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd HH:mm:ss,SSS")

kafka_classpath() { echo "$(tool kafka)/jars/*"; }
kafka_java() { java "${KAFKA_JVM[@]}" -cp "$(kafka_classpath)" "$@"; }

# kafka_properties ID BROKERS VOTERS
kafka_properties() {
  local id=$1 copies=$(($2 < 3 ? $2 : 3))
  cat <<PROPERTIES
process.roles=broker,controller
node.id=$id
broker.rack=zone$id
controller.quorum.voters=$3
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://$ADDRESS:$(kafka_port "$id"),CONTROLLER://$ADDRESS:$(kafka_controller_port "$id")
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs=$RUN/kafka/data$id
auto.create.topics.enable=false
unclean.leader.election.enable=false
default.replication.factor=$copies
# Consumer groups are not used; transactions are, and their topic is as safe as the number of brokers allows.
offsets.topic.num.partitions=1
offsets.topic.replication.factor=$copies
transaction.state.log.num.partitions=4
transaction.state.log.replication.factor=$copies
transaction.state.log.min.isr=$((copies < 2 ? 1 : 2))
# Small: one machine carries all brokers.
num.network.threads=2
num.io.threads=4
log.cleaner.dedupe.buffer.size=8388608
PROPERTIES
}
