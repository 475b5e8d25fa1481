#!/usr/bin/env bash
# The LUKS commands of docs/encryption.md, with a server on the volume, in a machine of their own: Debian's
# kernel boots under QEMU with an initramfs that holds dm-crypt, cryptsetup, mkfs.ext4, curl and the server.
# The commands are read from the document. By hand, as it takes minutes (QEMU_ACCEL=kvm is faster where it
# works):
#
#   apt-get install -y --no-install-recommends qemu-system-x86 busybox-static cpio kmod cryptsetup-bin \
#     e2fsprogs curl
#   tests/luks-qemu.sh target/debug/lazuli
#
# Prints PASS or FAIL for each step; exits with 0 if all passed.
# TOOLS names a folder with unpacked Debian packages, to be used instead of installed ones.
set -euo pipefail

repository=$(cd "$(dirname "$0")/.." && pwd)
server=${1:?the lazuli binary}
tools=${TOOLS:-}
if [ -n "$tools" ]; then
  export LD_LIBRARY_PATH=$tools/usr/lib/x86_64-linux-gnu:$tools/lib/x86_64-linux-gnu
  PATH=$tools/usr/bin:$tools/bin:$tools/usr/sbin:$tools/sbin:$PATH
fi
PATH=$PATH:/usr/sbin:/sbin

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

initramfs=$work/initramfs
mkdir -p "$initramfs"/{bin,sbin,usr/bin,proc,sys,dev,run,tmp,etc,lib64} "$initramfs/lib/modules/$version"
cp "$(command -v busybox)" "$initramfs/bin/busybox"
ln -s ../bin/busybox "$initramfs/sbin/modprobe"
strip -o "$initramfs/usr/bin/lazuli" "$server"
# Debian's busybox has no install.
for name in cryptsetup mkfs.ext4 curl install; do
  cp -L "$(command -v "$name")" "$initramfs/usr/bin/$name"
done
for program in "$initramfs"/usr/bin/*; do
  ldd "$program" | grep -o '/[^ ]*' | while read -r library; do
    mkdir -p "$initramfs/lib" && cp -Ln "$library" "$initramfs/lib/"
  done
done
cp -L /lib64/ld-linux-x86-64.so.2 "$initramfs/lib64/"
cp "$tools/etc/mke2fs.conf" "$initramfs/etc/"
printf 'root:x:0:0::/:/bin/sh\nlazuli:x:990:990::/var/lib/lazuli:/bin/sh\n' > "$initramfs/etc/passwd"
printf 'root:x:0:\nlazuli:x:990:\n' > "$initramfs/etc/group"

modules=$root/lib/modules/$version
{
  for module in nvme ext4 dm_crypt; do modprobe -d "$root" -S "$version" --show-depends "$module"; done |
    awk '/^insmod/ {print $2}'
  find "$modules/kernel/crypto" "$modules/kernel/arch/x86/crypto" "$modules/kernel/lib/crypto" -name '*.ko*'
} | sort -u | while read -r module; do
  target=$initramfs/${module#"$root"/}
  mkdir -p "$(dirname "$target")"
  cp "$module" "$target"
done
cp "$modules"/modules.{order,builtin} "$initramfs/lib/modules/$version/"
depmod -b "$initramfs" "$version"

# The first block of the section, up to the server, and the commands that change keys.
python3 - "$repository/docs/encryption.md" "$initramfs" <<'PYTHON'
import base64, hashlib, hmac, pathlib, re, sys, urllib.parse
section = pathlib.Path(sys.argv[1]).read_text().split("## LUKS")[1].split("\n## ")[0]
blocks = re.findall(r"```sh\n(.*?)```", section, re.S)
target = pathlib.Path(sys.argv[2])
setup = [line for line in blocks[0].splitlines() if line and not line.startswith("lazuli serve")]
(target / "setup").write_text("set -ex\n" + "\n".join(setup) + "\n")
(target / "setup-again").write_text("set -ex\n" + "\n".join(line for line in setup if re.match("cryptsetup open|mount", line)) + "\n")
for number, block in enumerate(blocks[1:], 1):
    (target / f"block{number}").write_text("set -ex\n" + block)
# An account SAS of the development account.
key = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
fields = {"sp": "rwdlac", "ss": "b", "srt": "sco", "st": "", "se": "2099-01-01T00:00:00Z", "sip": "", "spr": "", "sv": "2019-12-12"}
text = "devstoreaccount1\n" + "\n".join(fields.values()) + "\n"
fields["sig"] = base64.b64encode(hmac.new(base64.b64decode(key), text.encode(), hashlib.sha256).digest()).decode()
(target / "sas").write_text(urllib.parse.urlencode({name: value for name, value in fields.items() if value}))
PYTHON

cat > "$initramfs/init" <<'INIT'
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/usr/bin:/bin:/sbin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
modprobe nvme && modprobe ext4 && modprobe dm_crypt || echo "FAIL modules"
ip link set lo up
while [ ! -b /dev/nvme1n1 ]; do sleep 0.1; done
mkdir -p /run/cryptsetup
sas=$(cat /sas)
url=http://127.0.0.1:10000/devstoreaccount1
marker=lazuli-plaintext-marker

# Answers the questions for passphrases.
cat > /tmp/functions <<'SH'
cryptsetup() {
  case "$1" in
    luksChangeKey)
      cat /tmp/passphrase /tmp/new-passphrase | command cryptsetup "$@" || return 1
      cp /tmp/new-passphrase /tmp/passphrase ;;
    *) command cryptsetup "$@" < /tmp/passphrase ;;
  esac
}
SH
echo correct-horse > /tmp/passphrase
echo battery-staple > /tmp/new-passphrase

run() { # what, command…
  what=$1; shift
  if "$@" > /tmp/out 2>&1; then echo "PASS $what"; else echo "FAIL $what"; cat /tmp/out; fi
}
refused() { # what, command…
  what=$1; shift
  if "$@" > /tmp/out 2>&1; then echo "FAIL $what"; cat /tmp/out; else echo "PASS $what"; fi
}
of_document() { sh -c ". /tmp/functions; . $1"; }
serve() {
  su -s /bin/sh lazuli -c "exec lazuli serve --data /var/lib/lazuli/data" > /tmp/server 2>&1 &
  for n in $(seq 1 300); do curl -sf http://127.0.0.1:10080/readyz > /dev/null && return 0; sleep 0.1; done
  cat /tmp/server; return 1
}
kill_server() { pid=$(pidof lazuli) && kill -9 $pid && while pidof lazuli > /dev/null; do sleep 0.1; done; }
put() { curl -sf -X PUT -H 'x-ms-blob-type: BlockBlob' --data-binary "@$2" "$url/box/$1?$sas"; }
same() { curl -sf "$url/box/$1?$sas" -o /tmp/read && cmp /tmp/read "$2"; }
in_clear() { grep -qa "$marker" "${1:-/dev/nvme1n1}"; }
options="--allow-discards --perf-no_read_workqueue --perf-no_write_workqueue"
open_with_options() {
  echo ". /tmp/functions; cryptsetup open $options /dev/nvme1n1 lazuli; mount -o noatime /dev/mapper/lazuli /var/lib/lazuli" > /tmp/open
  sh -e /tmp/open && cryptsetup status lazuli | grep 'flags: *discards no_read_workqueue no_write_workqueue'
}
write() {
  curl -sf -X PUT -d '' "$url/box?restype=container&$sas" &&
    echo "$marker small" > /tmp/small && put small /tmp/small &&
    { for n in $(seq 1 2000); do echo "$marker $n"; done; dd if=/dev/urandom bs=1M count=20 2>/dev/null; } > /tmp/large &&
    put large /tmp/large
}
both_same() { same small /tmp/small && same large /tmp/large; }
close_volume() { umount /var/lib/lazuli && cryptsetup close lazuli && [ ! -e /dev/mapper/lazuli ]; }

run "the commands of the document" of_document /setup
echo "NOTE $(cryptsetup --version), $(uname -r), $(cryptsetup status lazuli | tr -s ' \n' ' ')"
run "the server starts on the volume" serve
run "blobs are written" write
run "blobs are read" both_same
run "the server is killed" kill_server
sync; echo 3 > /proc/sys/vm/drop_caches
run "blobs are in clear on the open volume" in_clear /dev/mapper/lazuli
refused "nothing is in clear on the device" in_clear
run "the volume is closed" close_volume
refused "the device cannot be mounted" mount -t ext4 /dev/nvme1n1 /var/lib/lazuli
refused "a wrong passphrase is refused" sh -c 'echo wrong | cryptsetup open /dev/nvme1n1 lazuli'
run "the volume is opened again" of_document /setup-again
run "the server starts again" serve
run "blobs are there after the kill" both_same
refused "no space is returned to the device without an option" fstrim -v /var/lib/lazuli
run "the commands that change keys, while the server runs" of_document /block1
run "blobs are there after the keys have changed" both_same
run "the server is killed again" kill_server
run "the volume is closed again" close_volume
refused "the old passphrase is refused" sh -c 'echo correct-horse | cryptsetup open /dev/nvme1n1 lazuli'
run "the volume is opened with the new passphrase, and options" open_with_options
run "space is returned to the device" fstrim -v /var/lib/lazuli
run "the server starts with the new keys" serve
run "blobs are there" both_same
kill_server; close_volume
refused "nothing is in clear after all this" in_clear
echo "END"
poweroff -f
INIT
chmod +x "$initramfs/init"
(cd "$initramfs" && find . | cpio -o -H newc --quiet | gzip -1) > "$work/initramfs.gz"
truncate -s 16M "$work/first"
truncate -s "${DISK:-512M}" "$work/second"

timeout "${QEMU_SECONDS:-900}" "${QEMU:-qemu-system-x86_64}" ${QEMU_OPTIONS:-} -accel "${QEMU_ACCEL:-tcg}" -cpu max -m 3072 -nographic -no-reboot \
  -kernel "$root"/boot/vmlinuz-* -initrd "$work/initramfs.gz" -append "console=ttyS0 quiet panic=-1" -nic none \
  -drive "file=$work/first,if=none,id=first,format=raw" -device nvme,drive=first,serial=1 \
  -drive "file=$work/second,if=none,id=second,format=raw,discard=unmap" -device nvme,drive=second,serial=2 \
  < /dev/null | sed -u 's|\r||g' | tee "$work/said"
grep -q '^END' "$work/said" && grep -q '^PASS' "$work/said" && ! grep -q '^FAIL' "$work/said"
