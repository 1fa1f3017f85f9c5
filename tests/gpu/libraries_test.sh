#!/usr/bin/env bash
# tests/gpu/libraries.sh over stand-ins of a compiler that came without cuBLASLt and of Python's packages that hold it:
# flags that compilers take, nvcc among them where there is one.
set -euo pipefail
here=$(realpath "$(dirname "$0")")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
fail() { echo "libraries_test: $*" >&2; exit 1; }

packages=$scratch/packages/cu13
mkdir -p "$scratch/bare/bin" "$scratch/python" "$packages/include" "$packages/lib"
printf '#!/bin/sh\n' >"$scratch/bare/bin/nvcc"
printf '#!/bin/sh\ncase "$2" in *"import nvidia;"*) echo %s ;; *) exit 1 ;; esac\n' "$packages" >"$scratch/python/python3"
chmod +x "$scratch/bare/bin/nvcc" "$scratch/python/python3"
touch "$packages/lib/libcublasLt.so.13"
echo 'constexpr int kFromPackages = 13;' >"$packages/include/cublasLt.h"
# Of a header that the compiler has, too, its own is taken.
echo '#error "not the compiler'"'"'s own"' >"$packages/include/stdlib.h"

source "$here/libraries.sh"
find() { options=() && PATH=$1:$scratch/python:$PATH && find_cublas; }
compiler=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
find "$scratch/bare/bin"
[ "$cublas" = "$packages/lib/libcublasLt.so.13" ] || fail "found '$cublas'"
[ "$cublas_directory" = "$packages/lib" ] || fail "its directory is '$cublas_directory'"
[ "${options[*]}" = "-DCUDA_cublasLt_LIBRARY=$cublas" ] || fail "CMake is told '${options[*]}'"

# A name of its own: an nvcc here may have brought the true header.
mv "$packages/include/cublasLt.h" "$packages/include/of_packages.h"
printf '#include <of_packages.h>\n#include <stdlib.h>\nint of_packages() { return kFromPackages; }\n' | tee "$scratch/a.cc" >"$scratch/a.cu"
# shellcheck disable=SC2086  # flags, as CMake gives them
g++ $cxx_include -c "$scratch/a.cc" -o "$scratch/a.o" || fail "g++ does not take '$cxx_include'"
if [ -x "$compiler" ]; then
  # shellcheck disable=SC2086
  "$compiler" --dryrun $cuda_include -c "$scratch/a.cu" -o "$scratch/a.o" >"$scratch/said" 2>&1 ||
    { cat "$scratch/said" >&2; fail "nvcc does not take '$cuda_include'"; }
  # shellcheck disable=SC2086
  "$compiler" $cuda_include -ptx "$scratch/a.cu" -o "$scratch/a.ptx" || fail "nvcc does not find the header by '$cuda_include'"
fi

# What came with the compiler needs none of it.
mkdir -p "$scratch/whole/bin" "$scratch/whole/include" "$scratch/whole/lib64"
cp "$scratch/bare/bin/nvcc" "$scratch/whole/bin"
touch "$scratch/whole/include/cublasLt.h" "$scratch/whole/lib64/libcublasLt.so"
find "$scratch/whole/bin"
[ "$cublas;$cxx_include;$cuda_include;${#options[@]}" = "$(realpath "$scratch/whole")/lib64/libcublasLt.so;;;0" ] ||
  fail "of a whole compiler: '$cublas', '$cxx_include', '$cuda_include', '${options[*]}'"
echo "passed"
