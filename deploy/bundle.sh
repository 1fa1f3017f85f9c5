#!/usr/bin/env bash
# Makes a relocatable archive of the built program and the libraries it needs, for hosts without our packages: unpack it anywhere
# (at the same path on every host of a job) and run bin/lockstep.
#
#   deploy/bundle.sh [--build DIR] [-o FILE.tar.zst|FILE.tar.gz]
#
# --build is the build directory that holds bin/lockstep (default build/release); without -o the archive lies beside it. What the host must
# have is glibc no older than this machine's (the release is printed, and written into the archive's README), a shell and, for several hosts,
# ssh. Fabric drivers (libibverbs, UCX, libfabric, PSM) and GPU libraries (the driver, NCCL, cuBLASLt) belong to the host's kernel and are
# never bundled: Open MPI's modules for them are left out, and an optional backend lib/liblockstep_*.so of the build finds them on the host.
# Needs Debian's patchelf, binutils, and zstd for .tar.zst.
set -euo pipefail
source=$(realpath "$(dirname "$0")/..")

fail() { echo "deploy/bundle.sh: $*" >&2; exit 1; }
build=$source/build/release output=""
while [ $# -gt 0 ]; do
  case "$1" in
    --build) build=$(realpath -m "${2:?--build needs a directory}"); shift ;;
    -o) output=$(realpath -m "${2:?-o needs a file}"); shift ;;
    -h | --help) sed -n '2,11p' "$0" | sed 's/^# \{0,1\}//'; exit 0 ;;
    *) echo "deploy/bundle.sh: unknown option '$1' (see --help)" >&2; exit 2 ;;
  esac
  shift
done
cd "$source"
program=$build/bin/lockstep
[ -x "$program" ] || fail "$program is not there; build it first: cmake -G Ninja -S . -B $build -DLOCKSTEP_WERROR=OFF && ninja -C $build lockstep"
for tool in patchelf objdump dpkg-query; do
  command -v "$tool" >/dev/null || fail "$tool is not installed; on Debian: apt-get install patchelf binutils"
done
name=lockstep-$("$program" --version | sed 's/^lockstep //')-linux-$(uname -m)
if [ -z "$output" ]; then
  command -v zstd >/dev/null && output=$build/$name.tar.zst || output=$build/$name.tar.gz
fi
case "$output" in
  *.tar.zst)
    command -v zstd >/dev/null || fail "zstd is not installed (apt-get install zstd, or name a .tar.gz)"
    compress=(zstd -q -9) ;;
  *.tar.gz) compress=(gzip -n -6) ;;
  *) fail "the name of $output must end in .tar.zst or .tar.gz" ;;
esac

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
root=$scratch/$name
mkdir -p "$root"/{bin,etc,lib,libexec,licenses,share}

# What belongs to every host: glibc, and what is tied to a host's drivers.
host_glibc='^(ld-linux.*|libc|libm|libdl|librt|libpthread|libresolv|libutil|libanl|libnsl|libBrokenLocale|libthread_db)\.so'
host_drivers='^lib(cuda|cudart|nvidia.*|nccl|cublas.*|nvrtc.*|ucp|ucs|uct|ucm|fabric|ibverbs|rdmacm|mlx[45]|psm.*|oshmem|mca_common_(ucx|ofi|verbs))\.so'
needed() { objdump -p "$1" | awk '$1 == "NEEDED" { print $2 }'; }
is_tied_to_drivers() { needed "$1" | grep -qE "$host_drivers"; }

origins=$scratch/origins  # every file taken from the system, for the licenses
# add_libraries ELF...: everything they need, found where this machine's linker finds it, into lib/.
add_libraries() {
  local libraries missing
  libraries=$(ldd "$@")
  missing=$(grep 'not found' <<<"$libraries" | grep -vE "^[[:space:]]*${host_drivers#^}" || true)
  [ -z "$missing" ] || fail "libraries are missing here: $missing"
  awk '$2 == "=>" && $3 ~ /^\// { print $1, $3 }' <<<"$libraries" | sort -u | while read -r soname path; do
    [[ $soname =~ $host_glibc || $soname =~ $host_drivers || -e $root/lib/$soname ]] && continue
    install -m 644 "$path" "$root/lib/$soname"
    echo "$path" >>"$origins"
  done
}
# add_modules DIRECTORY FILE...: what is opened at run time, and the libraries it needs.
add_modules() {
  local into=$1 module kept=()
  shift
  for module in "$@"; do
    is_tied_to_drivers "$module" || kept+=("$module")
  done
  mkdir -p "$into"
  install -m 644 "${kept[@]}" "$into/"
  printf '%s\n' "${kept[@]}" >>"$origins"
  add_libraries "${kept[@]}"
}

# Open MPI is found where its own tools say it lies; the other two beside their libraries.
ompi_path() { ompi_info --parsable --path "$1" | sed -n "s/^path:$1://p" | tail -1; }
command -v ompi_info >/dev/null || fail "Open MPI is not installed; on Debian: apt-get install openmpi-bin"
library_dir() { dirname "$(ldd "$2" | awk -v name="$1" '$1 ~ "^" name "\\." { print $3 }')"; }

install -m 755 "$program" "$root/libexec/lockstep"
strip --strip-debug "$root/libexec/lockstep"
# mpirun under the name by which it speaks of itself.
for tool in orterun:mpirun orted:orted; do
  install -m 755 "$(ompi_path bindir)/${tool%:*}" "$root/libexec/${tool#*:}"
  echo "$(ompi_path bindir)/${tool%:*}" >>"$origins"
done
add_libraries "$program" "$(ompi_path bindir)/orterun" "$(ompi_path bindir)/orted"

modules=$(ompi_path pkglibdir)
add_modules "$root/lib/openmpi" "$modules"/mca_*.so
hwloc=$(library_dir libhwloc "$program")/hwloc
# Of hwloc's modules the one that finds PCI devices; the others would bring X11, OpenCL and libxml2 for nothing.
if [ -e "$hwloc/hwloc_pci.so" ]; then add_modules "$root/lib/hwloc" "$hwloc/hwloc_pci.so"; fi
pmix=$(readlink -f "$(ldd "$modules/mca_pmix_ext3x.so" | awk '$1 ~ /^libpmix\./ { print $3 }')")
add_modules "$root/lib/pmix" "$(dirname "$pmix")"/pmix/*.so
mkdir -p "$root/share/openmpi" "$root/share/pmix"
cp "$(ompi_path pkgdatadir)"/help-*.txt "$root/share/openmpi/"
cp "$(dirname "$(dirname "$pmix")")"/share/pmix/*.txt "$root/share/pmix/"
# Optional backends of the build, opened at run time.
for backend in "$build"/lib/liblockstep_*.so; do
  if [ -e "$backend" ]; then
    install -m 644 "$backend" "$root/lib/"
    add_libraries "$backend"
  fi
done
cat >"$root/etc/openmpi-mca-params.conf" <<'CONF'
# Modules whose libraries a host lacks are passed over in silence.
mca_base_component_show_load_errors = 0
btl_base_warn_component_unused = 0
CONF
: >"$root/etc/openmpi-default-hostfile"

# Each finds its libraries relative to itself; as DT_RPATH, so that a cluster's LD_LIBRARY_PATH does not put another Open MPI in between.
set_rpath() {
  local rpath=$1
  shift
  if [ $# -gt 0 ]; then patchelf --force-rpath --set-rpath "$rpath" "$@"; fi
}
set_rpath '$ORIGIN/../lib' "$root"/libexec/*
set_rpath '$ORIGIN' "$root"/lib/*.so*
set_rpath '$ORIGIN/..' "$root"/lib/*/*.so
plugin=$root/lib/liblockstep_cuda.so
gpus="GPU plugin: none, ranks compute on CPUs ($build/lib has no ${plugin##*/}: CMake makes one where it finds nvcc and NCCL)"
if [ -e "$plugin" ]; then
  # CUDA is where NVIDIA's installer puts it, or the loader knows, or its libraries are put beside the plugin: that the build found them
  # elsewhere (NCCL_HOME) says nothing about other hosts.
  set_rpath '$ORIGIN:/usr/local/cuda/lib64' "$plugin"
  gpus="GPU plugin: needs $(needed "$plugin" | grep -E "$host_drivers" | sort | paste -sd ' ' | sed 's/ / and /g')"
fi

for tool in lockstep mpirun mpirun.openmpi orted; do install -m 755 deploy/bundle_run.sh "$root/bin/$tool"; done

cp LICENSE "$root/licenses/LICENSE"
# Of merged /lib and /usr/lib dpkg knows one name, the linker the other.
while read -r path; do printf '%s\n' "$path" "$(readlink -f "$path")" "/usr$path" "${path#/usr}"; done <"$origins" |
  sort -u | xargs dpkg-query -S 2>/dev/null >"$scratch/owners" || true
sed 's/.*: //' "$scratch/owners" >"$scratch/owned"
while read -r path; do
  grep -qxF -e "$path" -e "/usr$path" -e "${path#/usr}" -e "$(readlink -f "$path")" "$scratch/owned" ||
    fail "no package owns $path, so its license is not known"
done <"$origins"
sed 's/: .*//; s/:[a-z0-9]*$//' "$scratch/owners" | sort -u | while read -r package; do
  mkdir -p "$root/licenses/$package"
  cp "/usr/share/doc/$package/copyright" "$root/licenses/$package/"
done
cp -rL /usr/share/common-licenses "$root/licenses/"

elf_files=("$root"/libexec/* "$root"/lib/*.so* "$root"/lib/*/*.so)
glibc=$(objdump -T "${elf_files[@]}" | grep -oE 'GLIBC_2\.[0-9]+' | sort -uV | tail -1 | sed 's/GLIBC_//')
cat >"$root/README" <<README
$name: bin/lockstep runs from wherever this directory lies (at the same path on every host of a job).

The host must have glibc $glibc or later. bin/mpirun and bin/orted are the Open MPI that lockstep serve starts; it speaks TCP between hosts and
shared memory inside one. GPU libraries (driver, NCCL, cuBLASLt) are the host's: in /usr/local/cuda/lib64, where its loader looks (ldconfig), or
put into lib/ of this directory. licenses/ holds the terms of everything in here.

$gpus
README

mkdir -p "$(dirname "$output")"
stamp=${SOURCE_DATE_EPOCH:-$(git -C "$source" log -1 --format=%ct 2>/dev/null || date +%s)}
tar -C "$scratch" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$stamp" -cf - "$name" | "${compress[@]}" >"$output.part"
mv "$output.part" "$output"
printf '%s: %s, %s unpacked, %d libraries and modules; needs glibc %s or later (this machine has %s)\n' "$output" \
  "$(du -h "$output" | cut -f1)" "$(du -sh "$root" | cut -f1)" "$(find "$root/lib" -name '*.so*' | wc -l)" "$glibc" \
  "$(getconf GNU_LIBC_VERSION | cut -d' ' -f2)"
echo "$gpus"
