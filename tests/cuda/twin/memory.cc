#include "memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>

namespace twin {

namespace {

constexpr size_t kPage = 64 << 10;
constexpr size_t kAlignment = 256;               // alignment of cuMemAlloc
constexpr size_t kRegion = size_t{1} << 40;      // reserved addresses, without memory
constexpr size_t kMargin = size_t{1} << 36;      // addresses before the first allocation
constexpr uint64_t kGuard = 0xFFFEFFFEFFFEFFFE;  // NaN as float, double and bfloat16

size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

void* reserve(size_t bytes) {
  void* at = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return at == MAP_FAILED ? nullptr : at;
}

// Guards are checked before and after every test, a page at once.
constexpr uintptr_t kWord = sizeof kGuard;
constexpr uintptr_t kWhole = 4096;

// Bytes of a guard that begins at this address.
const unsigned char* guard_at(uintptr_t address) {
  static const auto bytes = [] {
    std::array<unsigned char, kWhole + kWord> filled;
    for (size_t i = 0; i < filled.size(); ++i) filled[i] = kGuard >> i % kWord * 8 & 0xFF;
    return filled;
  }();
  return bytes.data() + address % kWord;
}

void fill_guard(uintptr_t from, uintptr_t to) {
  for (uintptr_t next; from < to; from = next) {
    next = std::min(to, from + kWhole);
    std::memcpy(reinterpret_cast<void*>(from), guard_at(from), next - from);
  }
}

// The first byte of [from, to) that has changed since the fill, or `to`.
uintptr_t first_broken(uintptr_t from, uintptr_t to) {
  for (uintptr_t next; from < to; from = next) {
    next = std::min(to, from + kWhole);
    const auto* const found = reinterpret_cast<const unsigned char*>(from);
    const unsigned char* const filled = guard_at(from);
    if (std::memcmp(found, filled, next - from) != 0)
      return from + static_cast<uintptr_t>(
                        std::mismatch(found, found + (next - from), filled).first - found);
  }
  return to;
}

constexpr uint32_t kPoison = 0x7FFEFFFEu;

// Allocations of a piece and more, such as the workspace of a device, map a file of poison, whose
// pages are copied when they are written: few ever are.
constexpr size_t kPiece = 8 << 20;

// A file of kPiece bytes of poison, or -1.
int poison_file() {
  static const int file = [] {
    const int created = memfd_create("poison", MFD_CLOEXEC);
    if (created < 0 || ftruncate(created, kPiece) != 0) return -1;
    void* at = mmap(nullptr, kPiece, PROT_READ | PROT_WRITE, MAP_SHARED, created, 0);
    if (at == MAP_FAILED) return -1;
    poison(at, kPiece);
    munmap(at, kPiece);
    return created;
  }();
  return file;
}

// Replace pages by poisoned ones; false if the system refuses.
bool map_poison(uintptr_t pages, size_t bytes) {
  const int file = poison_file();
  for (size_t i = 0; i < bytes && file >= 0; i += kPiece) {
    if (mmap(reinterpret_cast<void*>(pages + i), std::min(kPiece, bytes - i),
             PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, file, 0) == MAP_FAILED)
      return false;
  }
  return file >= 0;
}

}  // namespace

void poison(void* address, size_t bytes) {
  char* to = static_cast<char*>(address);
  for (size_t i = 0; i + 4 <= bytes; i += 4) std::memcpy(to + i, &kPoison, 4);
  std::memcpy(to + bytes / 4 * 4, &kPoison, bytes % 4);
}

bool poisoned(const void* address, size_t bytes) {
  const char* from = static_cast<const char*>(address);
  for (size_t i = 0; i < bytes; i += 4)
    if (std::memcmp(from + i, &kPoison, std::min<size_t>(4, bytes - i)) != 0) return false;
  return true;
}

Memory::Memory() {
  void* at = reserve(kRegion);
  size_t bytes = kRegion;
  for (; at == nullptr && bytes > 2 * kMargin; at = reserve(bytes)) bytes /= 2;
  if (at == nullptr) return;  // every allocation then fails as out of memory
  region_ = reinterpret_cast<uintptr_t>(at);
  end_ = region_ + bytes;
  next_ = round_up(region_, kPage) + kMargin;
}

uintptr_t Memory::add(Blocks& blocks, uintptr_t pages, size_t bytes, size_t page_bytes) {
  void* at = reinterpret_cast<void*>(pages);
  // The allocation ends at the end of its pages, so the next byte faults.
  const uintptr_t start = pages + page_bytes - round_up(bytes, kAlignment);
  if (page_bytes < kPiece || !map_poison(pages, page_bytes)) {
    if (mprotect(at, page_bytes, PROT_READ | PROT_WRITE) != 0) return 0;
    poison(reinterpret_cast<void*>(start), bytes);
  }
  blocks[start] = {bytes, pages, page_bytes};
  guard(*blocks.find(start));
  return start;
}

uintptr_t Memory::allocate(size_t bytes) {
  if (bytes > capacity || used_ > capacity - bytes) return 0;
  const size_t page_bytes = round_up(round_up(bytes, kAlignment) + kAlignment, 4096);
  if (end_ - next_ < page_bytes + 2 * kPage) return 0;
  const uintptr_t end = round_up(next_ + page_bytes, kPage);
  const uintptr_t start = add(device_, end - page_bytes, bytes, page_bytes);
  if (start == 0) return 0;
  next_ = end + kPage;
  used_ += bytes;
  return start;
}

bool Memory::free(uintptr_t address) {
  const auto found = device_.find(address);
  if (found == device_.end()) return false;
  violations_ += broken(*found);
  const Block block = found->second;
  used_ -= block.bytes;
  device_.erase(found);
  void* pages = reinterpret_cast<void*>(block.pages);
  // The address stays reserved: later accesses fault.
  mmap(pages, block.page_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
       -1, 0);
  return true;
}

uintptr_t Memory::allocate_pinned(size_t bytes) {
  const size_t page_bytes = round_up(round_up(bytes, kAlignment) + kAlignment, 4096);
  void* at = reserve(page_bytes + kPage);
  return at == nullptr ? 0 : add(pinned_, reinterpret_cast<uintptr_t>(at), bytes, page_bytes);
}

bool Memory::free_pinned(uintptr_t address) {
  const auto found = pinned_.find(address);
  if (found == pinned_.end()) return false;
  violations_ += broken(*found);
  munmap(reinterpret_cast<void*>(found->second.pages), found->second.page_bytes + kPage);
  pinned_.erase(found);
  return true;
}

const Memory::Blocks::value_type* Memory::find(const Blocks& blocks, uintptr_t address,
                                               size_t bytes) {
  auto after = blocks.upper_bound(address);
  if (after == blocks.begin()) return nullptr;
  const auto& block = *--after;
  const size_t offset = address - block.first;
  return offset <= block.second.bytes && bytes <= block.second.bytes - offset ? &block : nullptr;
}

bool Memory::device(uintptr_t address, size_t bytes) const {
  return find(device_, address, bytes) != nullptr;
}

std::optional<std::pair<uintptr_t, uintptr_t>> Memory::allocation(uintptr_t address,
                                                                  size_t bytes) const {
  const auto* found = find(device_, address, bytes);
  if (found == nullptr) return std::nullopt;
  return std::pair{found->first, found->first + found->second.bytes};
}

bool Memory::pinned(uintptr_t address, size_t bytes) const {
  return find(pinned_, address, bytes) != nullptr;
}

bool Memory::reachable(uintptr_t address) const {
  return (address >= region_ && address < end_) || pinned(address, 0);
}

std::string Memory::describe(uintptr_t address) const {
  char hex[32];
  std::snprintf(hex, sizeof hex, "%#llx", static_cast<unsigned long long>(address));
  std::string text = hex;
  if (address < region_ || address >= end_) return text + ", which is no device memory";
  const auto after = device_.upper_bound(address);
  const auto size_text = [](const Block& block) {
    return " one of " + std::to_string(block.bytes) + " bytes";
  };
  if (after != device_.end() && after->first - address < kPage)
    return text + ", " + std::to_string(after->first - address) + " bytes before" +
           size_text(after->second);
  if (after == device_.begin()) return text + ", outside of every allocation";
  const auto& [start, block] = *std::prev(after);
  return text + ", " + std::to_string(address - start) + " bytes from the start of" +
         size_text(block);
}

void Memory::guard(const Blocks::value_type& entry) {
  const auto& [start, block] = entry;
  fill_guard(block.pages, start);
  fill_guard(start + block.bytes, block.pages + block.page_bytes);
}

void Memory::forget_violations() {
  violations_.clear();
  for (const Blocks* blocks : {&device_, &pinned_})
    for (const auto& block : *blocks)
      if (!broken(block).empty()) guard(block);
}

std::string Memory::broken(const Blocks::value_type& entry) {
  const auto& [start, block] = entry;
  const uintptr_t end = start + block.bytes, pages_end = block.pages + block.page_bytes;
  const uintptr_t before = first_broken(block.pages, start), behind = first_broken(end, pages_end);
  std::string text;
  if (before != start) text += "written " + std::to_string(start - before) + " bytes before";
  if (behind != pages_end)
    text +=
        (text.empty() ? "written " : " and ") + std::to_string(behind - end + 1) + " bytes behind";
  return text.empty() ? text
                      : text + " an allocation of " + std::to_string(block.bytes) + " bytes\n";
}

std::string Memory::violations() const {
  std::string text = violations_;
  for (const Blocks* blocks : {&device_, &pinned_})
    for (const auto& block : *blocks) text += broken(block);
  return text;
}

}  // namespace twin
