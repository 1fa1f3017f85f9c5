# Sourced by tests that want a Python package: takes it, as requirements.txt pins it, from where it was installed once, else installs it there;
# skips (exit 77) where it cannot. Wants $build, a build directory.
#
#   python_with NAME   sets PYTHONPATH to NAME's directory
python_with() {
  python3 -m pip --version >/dev/null 2>&1 || skip "python3 with pip is not installed"
  local pin packages
  pin=$(grep "^$1==" "$(dirname "${BASH_SOURCE[0]}")/requirements.txt")
  packages=$build/python_packages/$pin
  if [ ! -d "$packages" ]; then
    mkdir -p "$(dirname "$packages")"
    python3 -m pip install --quiet --disable-pip-version-check --root-user-action ignore --target "$packages.part" "$pin" \
      >"$packages.log" 2>&1 || skip "pip cannot install $pin: $(tail -1 "$packages.log")"
    mv "$packages.part" "$packages"
  fi
  export PYTHONPATH=$packages
}
skip() { echo "SKIPPED: $*"; exit 77; }
