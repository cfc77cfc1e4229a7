#include "symbols.h"

#include <dlfcn.h>

#include <cstdio>

namespace twin {

std::string place_text(const void* instruction) {
  Dl_info info = {};
  if (dladdr(instruction, &info) == 0 || info.dli_fname == nullptr) return {};
  char command[4200];
  const auto offset = static_cast<const char*>(instruction) - static_cast<char*>(info.dli_fbase);
  std::snprintf(command, sizeof command, "addr2line -s -e '%s' 0x%tx 2>/dev/null", info.dli_fname,
                offset - 1);  // a return address may belong to the next line
  FILE* const pipe = popen(command, "r");
  if (pipe == nullptr) return {};
  char line[512] = {};
  const bool read = std::fgets(line, sizeof line, pipe) != nullptr;
  pclose(pipe);
  std::string text = read ? line : "";
  text.erase(text.find_last_not_of("\n") + 1);
  text.erase(text.find(" (discriminator") == std::string::npos ? text.size()
                                                               : text.find(" (discriminator"));
  return text.empty() || text[0] == '?' ? "" : " in " + text;
}

}  // namespace twin
