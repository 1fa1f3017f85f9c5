#!/usr/bin/env bash
# No two files of the product define a type of one name: in one program each would run the other's functions wherever the compiler does not
# inline them, and neither compiler nor linker says so. Namespaces without a name and types within others are nobody else's.
#
#   tests/one_definition_test.sh
set -euo pipefail
cd "$(dirname "$0")/.."

# types FILE...: "namespace::Type file" of each definition. clang-format puts what lies in namespaces, and these, at the line's beginning.
types() {
  awk '
    FNR == 1 { space = ""; hidden = 0 }
    /^namespace \{/ { hidden = 1 }
    /^}  \/\/ namespace$/ { hidden = 0 }
    /^namespace [a-z_0-9:]+ \{/ { space = space $2 "::" }
    !hidden && /^(class|struct|union|enum|enum class) [A-Za-z_0-9]+( final)?( *\{|( :|$))/ && !/;$/ {
      name = $2 == "class" ? $3 : $2
      sub(/[^A-Za-z_0-9].*/, "", name)
      print space name, FILENAME
    }' "$@"
}

# twice FILE...: the names that stand in several of them.
twice() {
  types "$@" | sort -u | awk '{ files[$1] = files[$1] " " $2; count[$1]++ } END { for (name in count) if (count[name] > 1) print name ":" files[name] }'
}

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
printf 'namespace a {\nclass X final : public Y {\n};\nstruct Z;\nnamespace {\nstruct Own {\n};\n}  // namespace\nstruct X::In {\n};\n}  // namespace a\n' >"$scratch/1.h"
printf 'namespace a {\nstruct X {\n};\nstruct Z {};\nnamespace {\nstruct Own {\n};\n}  // namespace\nstruct X::In {\n};\n}  // namespace a\n' >"$scratch/2.h"
found=$(twice "$scratch/1.h" "$scratch/2.h")
if [ "$found" != "a::X: $scratch/1.h $scratch/2.h" ]; then
  echo "one_definition_test.sh: of two files that define a::X it finds '$found'" >&2
  exit 1
fi

mapfile -t files < <(find runtime parallel model kernels launcher deploy/plan -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh')
found=$(twice "${files[@]}")
if [ -n "$found" ]; then
  printf 'defined in more than one file:\n%s\n' "$found" >&2
  exit 1
fi
echo "$(types "${files[@]}" | wc -l) types in ${#files[@]} files, each defined once"
