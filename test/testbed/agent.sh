# The emulated host's command loops. A line on port 1 names a script in the share; its output goes to ports 2 and 3, and
# then to both of them a record separator, the name again and the exit status. Ports 4 and 5 are the same for scripts that
# look at what runs meanwhile. A port can be opened only once.
share=$(dirname "$0")
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8
port() { echo /dev/"$(basename /sys/class/virtio-ports/*p"$1")"; }
# Before anything else uses KVM; hold-kvm.c says why.
mkfifo /run/held
"$share/hold-kvm" </dev/null >/run/held 2>&1 &
read -r held </run/held
[ "$held" = held ] || echo "agent: KVM cannot be held: $held" >/dev/console
(
  exec 3<>"$(port 4)" 4>"$(port 5)"
  while read -r id <&3; do
    sh "$share/$id.sh" </dev/null >&4 2>&1 3<&- 4>&-
    printf '\036%s %s\n' "$id" "$?" >&4
  done
) &
exec 3<>"$(port 1)" 4>"$(port 2)" 5>"$(port 3)"
echo up >&3
while read -r id <&3; do
  sh "$share/$id.sh" </dev/null >&4 2>&5 3<&- 4>&- 5>&-
  status=$?
  printf '\036%s %s\n' "$id" "$status" >&4
  printf '\036%s %s\n' "$id" "$status" >&5
done
