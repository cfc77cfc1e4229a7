// Source lines of instructions.
#pragma once

#include <string>

namespace twin {

// Return " in rows.cu:12", or "" if the line is unknown.
std::string place_text(const void* instruction);

}  // namespace twin
