// Source lines of instructions.
#pragma once

#include <string>

namespace twin {

// " in rows.cu:12"; empty if nobody knows.
std::string place_text(const void* instruction);

}  // namespace twin
