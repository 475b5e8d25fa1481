#!/bin/sh
# Assembles the root file system of the image: the binary, the libraries that it loads, certificates, a user.
#
#     rootfs.sh BINARY DIR
#
# The Dockerfile and the tests call it, so that the tests run what the image contains.
set -eu
binary=$1
root=$2

mkdir -p "$root/usr/bin" "$root/etc/ssl/certs" "$root/data" "$root/tmp"
install -m 755 "$binary" "$root/usr/bin/lazuli"
ln -sf lazuli "$root/usr/bin/azurite"

# libgcc_s is loaded for unwinding; the NSS libraries of glibc 2.36 are part of libc.so.6.
ldd "$binary" | awk '$2 == "=>" { print $3 } $1 ~ /^\// { print $1 }' | sort -u | while read -r library; do
  mkdir -p "$root$(dirname "$library")"
  cp -L "$library" "$root$library"
done

if [ -e /etc/ssl/certs/ca-certificates.crt ]; then
  cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
fi
echo 'lazuli:x:65532:65532::/data:/usr/bin/lazuli' > "$root/etc/passwd"
echo 'lazuli:x:65532:' > "$root/etc/group"
echo 'hosts: files dns' > "$root/etc/nsswitch.conf"
chmod 1777 "$root/tmp"
chmod 700 "$root/data"
if [ "$(id -u)" = 0 ]; then chown 65532:65532 "$root/data"; fi
# Port 445 is below 1024, and the process does not run as root.
if command -v setcap >/dev/null && [ "$(id -u)" = 0 ]; then
  setcap cap_net_bind_service=+ep "$root/usr/bin/lazuli" || echo "rootfs.sh: no file capabilities here; port 445 needs them" >&2
fi
