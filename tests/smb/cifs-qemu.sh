# !/usr/bin/env bash Tests the Linux kernel's own SMB client against a server on this machine, without a
# module in this machine's kernel. Debian's kernel boots under QEMU with an initramfs that contains cifs.ko
# and busybox, and mounts the share. The guest reaches the host's loopback as 10.0.2.2. Takes minutes, so run
# it by hand (QEMU_ACCEL=kvm is faster where it works):
#
#   apt-get install -y --no-install-recommends qemu-system-x86 busybox-static cpio kmod
#   tests/smb/cifs-qemu.sh target/debug/lazuli       (or `smbd` for the anchor)
#
# Prints the steps of the guest, and PASS or FAIL for each mount. Exits with 0 if all mounts passed.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
server=${1:?the lazuli binary, or smbd}
if [ -z "${SMB_PORT:-}" ]; then # run this script again, with a server
  exec python3 "$here/servers.py" "$server" -- "$0" "$server"
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cache=${KERNEL_CACHE:-$HOME/.cache/lazuli-cifs-qemu}
mkdir -p "$cache"

# The kernel package is unpacked, not installed.
if ! ls "$cache"/root/boot/vmlinuz-* >/dev/null 2>&1; then
  kernel=$(apt-cache depends linux-image-amd64 | awk '/Depends: linux-image/ {print $2; exit}')
  (cd "$cache" && apt-get download "$kernel" && dpkg-deb -x linux-image-*.deb root && rm linux-image-*.deb)
fi
root=$cache/root
version=$(ls "$root/lib/modules")
depmod -b "$root" "$version"

# The initramfs: busybox, the modules that cifs and the network card need, and all ciphers, which cifs
# requests by name.
initramfs=$work/initramfs
mkdir -p "$initramfs"/{bin,sbin,proc,sys,dev,mnt,tmp} "$initramfs/lib/modules/$version"
cp "$(command -v busybox)" "$initramfs/bin/busybox"
ln -s ../bin/busybox "$initramfs/sbin/modprobe"
# Debian's busybox has no flock.
for file in $(command -v flock) $(ldd "$(command -v flock)" | grep -o '/[^ ]*'); do
  mkdir -p "$initramfs$(dirname "$file")"
  cp -L "$file" "$initramfs$file"
done
modules=$root/lib/modules/$version
{
  for module in cifs virtio_net virtio_pci; do modprobe -d "$root" -S "$version" --show-depends "$module"; done |
    awk '/^insmod/ {print $2}'
  find "$modules/kernel/crypto" "$modules/kernel/arch/x86/crypto" "$modules/kernel/lib/crypto" \
    "$modules/kernel/fs/nls" -name '*.ko*'
} | sort -u | while read -r module; do
  target=$initramfs/${module#"$root"/}
  mkdir -p "$(dirname "$target")"
  cp "$module" "$target"
done
cp "$modules"/modules.{order,builtin} "$initramfs/lib/modules/$version/"
depmod -b "$initramfs" "$version"

sed -e "s|@PORT@|$SMB_PORT|" -e "s|@SHARE@|$SMB_SHARE|" -e "s|@USER@|$SMB_USER|" -e "s|@PASSWORD@|$SMB_PASSWORD|" \
  > "$initramfs/init" <<'INIT'
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin:/sbin:/usr/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
modprobe virtio_pci && modprobe virtio_net && modprobe cifs || echo "FAIL modules"
ip link set lo up
ip link set eth0 up
ip addr add 10.0.2.15/24 dev eth0

# Uses the mounted share. The first step that fails prints its name and ends the function.
use_the_share() {
  cd /mnt || return 1
  mkdir -p "dir/deep" || return 1
  dd if=/dev/urandom of=/tmp/data bs=1M count=8 2>/dev/null
  cp /tmp/data dir/data || { echo "write"; return 1; }
  sync
  echo 3 > /proc/sys/vm/drop_caches
  cmp /tmp/data dir/data || { echo "read"; return 1; }
  mv dir/data dir/deep/moved || { echo "rename"; return 1; }
  cp dir/deep/moved dir/other && mv -f dir/other dir/deep/moved || { echo "rename over"; return 1; }
  for n in $(seq 1 300); do echo "$n" > "dir/file$n" || { echo "create"; return 1; }; done
  [ "$(ls dir | wc -l)" = 301 ] || { echo "list: $(ls dir | wc -l)"; return 1; }
  [ "$(cat dir/file123)" = 123 ] || { echo "content"; return 1; }
  echo appended >> dir/file123 && [ "$(wc -l < dir/file123)" = 2 ] || { echo "append"; return 1; }
  truncate -s 3 dir/file300 && [ "$(stat -c %s dir/file300)" = 3 ] || { echo "truncate"; return 1; }
  touch -d "2001-02-03 04:05:06" dir/file1 && [ "$(stat -c %Y dir/file1)" = 981173106 ] || { echo "time"; return 1; }
  flock -n dir/file2 sh -c '! flock -n dir/file2 true 2>/dev/null' && flock -n dir/file2 true || { echo "lock"; return 1; }
  [ "$(df -P /mnt | wc -l)" = 2 ] || { echo "volume"; return 1; }
  rm -r dir || { echo "remove"; return 1; }
  [ -z "$(ls)" ] || { echo "left over: $(ls)"; return 1; }
}

for options in vers=2.1 vers=3.0 vers=3.0,seal vers=3.1.1 vers=3.1.1,sign vers=3.1.1,seal vers=3.1.1,cache=none; do
  if mount -t cifs -o "ip=10.0.2.2,port=@PORT@,username=@USER@,password=@PASSWORD@,$options" //10.0.2.2/@SHARE@ /mnt; then
    if (use_the_share); then echo "PASS $options"; else echo "FAIL $options"; dmesg | tail -5; fi
    umount /mnt || umount -l /mnt
  else
    echo "FAIL $options: not mounted"; dmesg | tail -5
  fi
done
if mount -t cifs -o "ip=10.0.2.2,port=@PORT@,username=@USER@,password=wrong,vers=3.1.1" //10.0.2.2/@SHARE@ /mnt 2>/dev/null; then
  echo "FAIL a wrong password was taken"
else
  echo "PASS a wrong password is refused"
fi
echo "END"
poweroff -f
INIT
chmod +x "$initramfs/init"
(cd "$initramfs" && find . | cpio -o -H newc --quiet | gzip -1) > "$work/initramfs.gz"

timeout "${QEMU_SECONDS:-900}" qemu-system-x86_64 -accel "${QEMU_ACCEL:-tcg}" -m 512 -nographic -no-reboot \
  -kernel "$root"/boot/vmlinuz-* -initrd "$work/initramfs.gz" -append "console=ttyS0 quiet panic=-1" \
  -netdev user,id=net -device virtio-net-pci,netdev=net,romfile= < /dev/null | sed -u 's|\r||g' | tee "$work/said"
grep -q '^END' "$work/said" && grep -q '^PASS' "$work/said" && ! grep -q '^FAIL' "$work/said"
