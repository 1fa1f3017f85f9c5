# Sourced by tests that want a Python package: takes it, as requirements.txt pins it, from where it was installed once, else installs it there;
# skips (exit 77) where it cannot. Wants $build, a build directory.
#
#   python_with NAME                        puts NAME's directory in front of PYTHONPATH
#   python_libraries VARIABLE REQUIREMENTS  for what takes 6 GB: installs all that the file REQUIREMENTS pins, for Python 3.11, in the directory that
#                                           the environment's VARIABLE names, and sets $packages to where it is
python_with() {
  python3 -m pip --version >/dev/null 2>&1 || skip "python3 with pip is not installed"
  local pin packages part
  pin=$(grep "^$1==" "$(dirname "${BASH_SOURCE[0]}")/requirements.txt")
  packages=$build/python_packages/$pin
  if [ ! -d "$packages" ]; then
    mkdir -p "$(dirname "$packages")"
    part=$(mktemp -d "$packages.XXXXXX")  # others may install it, too
    python3 -m pip install --quiet --disable-pip-version-check --root-user-action ignore --target "$part/it" "$pin" >"$part/log" 2>&1 ||
      skip "pip cannot install $pin: $(tail -1 "$part/log")"
    mv -T "$part/it" "$packages" 2>/dev/null || [ -d "$packages" ]
    rm -rf "$part"
  fi
  export PYTHONPATH=$packages${PYTHONPATH:+:$PYTHONPATH}
}
python_libraries() {
  local directory=${!1:-} version free_gb
  [ -n "$directory" ] || skip "$1 names no directory for 6 GB of Python libraries to compare with"
  python3 -m pip --version >/dev/null 2>&1 || skip "python3 with pip is not installed"
  version=$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  [ "$version" = 3.11 ] || skip "the libraries are pinned for Python 3.11, this is $version"
  packages=$directory/$(sha256sum "$2" | cut -c1-16)
  if [ ! -d "$packages" ]; then
    mkdir -p "$directory"
    free_gb=$(($(df --output=avail -k "$directory" | tail -1) >> 20))
    [ "$free_gb" -ge 16 ] || skip "$free_gb GiB are free at $directory, 16 are needed to install the libraries"
    rm -rf "$packages.part"
    python3 -m pip install --quiet --disable-pip-version-check --root-user-action ignore --no-deps --target "$packages.part" -r "$2" \
      >"$packages.log" 2>&1 || skip "pip cannot install ${2##*/e2e/}: $(tail -1 "$packages.log")"
    mv "$packages.part" "$packages"
  fi
}
skip() { echo "SKIPPED: $*"; exit 77; }
