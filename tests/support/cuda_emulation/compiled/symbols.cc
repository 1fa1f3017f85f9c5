#include "tests/support/cuda_emulation/compiled/symbols.h"

#include <dlfcn.h>
#include <elf.h>

#include <cstring>
#include <map>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/support/read_file.h"

namespace lockstep::cuda_emulation::ptx {

namespace {

using Names = std::map<uint64_t, std::string>;  // of functions, by where they begin in the file

// An object of the file's, zeros where it lies beyond its end.
template <typename T>
T At(const std::string& file, uint64_t offset) {
  T object = {};
  if (offset <= file.size() && sizeof(T) <= file.size() - offset) {
    std::memcpy(&object, file.data() + offset, sizeof(T));
  }
  return object;
}

void AddSymbols(const std::string& file, const Elf64_Shdr& symbols, const Elf64_Shdr& strings,
                Names& names) {
  for (uint64_t at = 0; at + sizeof(Elf64_Sym) <= symbols.sh_size; at += sizeof(Elf64_Sym)) {
    const auto symbol = At<Elf64_Sym>(file, symbols.sh_offset + at);
    if (ELF64_ST_TYPE(symbol.st_info) != STT_FUNC || symbol.st_value == 0) continue;
    const uint64_t name = strings.sh_offset + symbol.st_name;
    if (name < file.size()) names.emplace(symbol.st_value, file.c_str() + name);
  }
}

// Source: System V ABI, "Sections" and "Symbol Table".
Names NamesIn(const std::string& path) {
  const std::string file = testing::ReadFile(path);
  const auto header = At<Elf64_Ehdr>(file, 0);
  Names names;
  if (!absl::StartsWith(file, ELFMAG)) return names;
  const auto section = [&](uint64_t index) {
    return At<Elf64_Shdr>(file, header.e_shoff + index * sizeof(Elf64_Shdr));
  };
  for (int i = 0; i < header.e_shnum; ++i) {
    if (section(i).sh_type == SHT_SYMTAB)
      AddSymbols(file, section(i), section(section(i).sh_link), names);
  }
  return names;
}

}  // namespace

absl::StatusOr<std::string> NameOfFunction(const void* function) {
  static auto* files = new std::map<std::string, Names>;
  Dl_info info;
  if (dladdr(function, &info) == 0) return absl::NotFoundError("a function of no file");
  auto [found, is_new] = files->try_emplace(info.dli_fname);
  if (is_new) found->second = NamesIn(info.dli_fname);
  const auto offset = static_cast<uint64_t>(static_cast<const char*>(function) -
                                            static_cast<const char*>(info.dli_fbase));
  // Files that lie where they were linked to have addresses, others offsets.
  for (const uint64_t begin : {offset, reinterpret_cast<uint64_t>(function)}) {
    const auto name = found->second.find(begin);
    if (name != found->second.end()) return name->second;
  }
  return absl::NotFoundError(absl::StrCat(info.dli_fname, " does not name a function at ", offset));
}

std::string CommonName(const std::string& mangled) {
  const std::string kUnnamed = "_GLOBAL__N_";
  std::string common;
  for (size_t at = 0; at < mangled.size();) {
    // One of them marks what no other file can name.
    if (mangled[at] == 'L' && at + 1 < mangled.size() && absl::ascii_isdigit(mangled[at + 1])) ++at;
    size_t end = at;
    size_t length = 0;  // that a name is said to have
    while (end < mangled.size() && absl::ascii_isdigit(mangled[end]) && length < mangled.size()) {
      length = length * 10 + static_cast<size_t>(mangled[end++] - '0');
    }
    if (end > at && mangled.compare(end, kUnnamed.size(), kUnnamed) == 0 &&
        length <= mangled.size() - end) {
      absl::StrAppend(&common, kUnnamed.size(), kUnnamed);
      at = end + length;
    } else {
      common += mangled[at++];
    }
  }
  return common;
}

}  // namespace lockstep::cuda_emulation::ptx
