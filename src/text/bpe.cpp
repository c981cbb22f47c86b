#include "text/bpe.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

namespace stet::text {

Result<void> Merger::append(std::string_view piece, std::size_t offset, std::vector<TokenId>& ids) {
  if (piece.size() >= Vocabulary::kNoRank) {
    return fail(Code::capacity, fmt::format("byte {}: {} bytes without a place to cut", offset, piece.size()));
  }
  const auto size = static_cast<std::uint32_t>(piece.size());
  nodes_.resize(size);
  for (std::uint32_t at = 0; at < size; ++at) {
    const auto byte = static_cast<unsigned char>(piece[at]);
    const TokenId id = vocabulary_->byte(byte);
    if (id == kNoToken) {
      return fail(
          Code::invalid_argument,
          fmt::format("byte {} of the text: the vocabulary has no token for the byte 0x{:02x}", offset + at, byte));
    }
    nodes_[at] = {id, at == 0 ? size : at - 1, at + 1, Vocabulary::kNoRank};
  }

  queue_.clear();
  for (std::uint32_t at = 0; at < size; ++at) rank(at);
  while (!queue_.empty()) {
    std::pop_heap(queue_.begin(), queue_.end(), std::greater<>());
    const std::uint64_t entry = queue_.back();
    queue_.pop_back();
    const auto at = static_cast<std::uint32_t>(entry);
    if (nodes_[at].rank == entry >> 32) merge(at);
  }
  for (std::uint32_t at = 0; at < size; at = nodes_[at].next) ids.push_back(nodes_[at].id);
  return {};
}

/// Finds the rank of a node's pair anew and queues it.
void Merger::rank(std::uint32_t at) {
  Node& node = nodes_[at];
  const bool is_last = node.next == nodes_.size();
  node.rank = is_last ? Vocabulary::kNoRank : vocabulary_->rank(node.id, nodes_[node.next].id);
  if (node.rank == Vocabulary::kNoRank) return;
  queue_.push_back(std::uint64_t{node.rank} << 32 | at);
  std::push_heap(queue_.begin(), queue_.end(), std::greater<>());
}

/// Makes one node of a node and its next one.
void Merger::merge(std::uint32_t at) {
  Node& node = nodes_[at];
  Node& gone = nodes_[node.next];
  node.id = vocabulary_->merged(node.rank);
  node.next = gone.next;
  gone.rank = Vocabulary::kNoRank;
  if (node.next != nodes_.size()) nodes_[node.next].previous = at;
  rank(at);
  if (node.previous != nodes_.size()) rank(node.previous);
}

}  // namespace stet::text
