# What the processes of a host are waiting for, a line a thread: its name, its state, where it sleeps in the kernel, its system call. Then what its virtual
# machines have been doing for a second. Few programs are started: a host that is looked at may have little left.
for process in /proc/[0-9]*; do
  read -r line <"$process/cmdline" 2>/dev/null
  # Kernel threads have no command line.
  [ -n "$line" ] || continue
  echo "$process $(tr '\0' ' ' <"$process/cmdline" | cut -c 1-160)"
  for thread in "$process"/task/*; do
    read -r name <"$thread/comm" && read -r call <"$thread/syscall" && read -r sleep <"$thread/wchan"
    read -r _ _ state _ <"$thread/stat"
    echo "  ${thread##*/} $name $state $sleep, system call $call"
  done 2>/dev/null
done
mount -t debugfs debugfs /sys/kernel/debug 2>/dev/null
for moment in 1 2; do
  echo "virtual machines, $moment of 2"
  grep -s '' /sys/kernel/debug/kvm/*-*/exits /sys/kernel/debug/kvm/*-*/halt_exits /sys/kernel/debug/kvm/*-*/halt_wakeup \
    /sys/kernel/debug/kvm/*-*/irq_injections /sys/kernel/debug/kvm/*-*/irq_exits /sys/kernel/debug/kvm/*-*/mmio_exits | grep -v ':0$'
  [ $moment = 2 ] || sleep 1
done
