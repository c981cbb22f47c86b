// Byte-pair merging (Sennrich et al. 2016; openai/gpt-2 encoder.py, bpe).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "stet/result.hpp"
#include "stet/types.hpp"
#include "text/vocabulary.hpp"

namespace stet::text {

/// Merges the bytes of pieces of text into tokens, always the pair of the lowest rank first and of these the leftmost.
/// Time n log n in the bytes of a piece. Holds the memory of one call of encode(): one thread uses one.
///
/// openai's code merges all occurrences of a pair before it looks at the pairs that these made. That gives the same
/// tokens unless the list uses a token before a merge that makes it, which GPT-2's list never does; on lists that do,
/// this order is that of Hugging Face's tokenizers and of tiktoken.
class Merger {
 public:
  explicit Merger(const Vocabulary& vocabulary) noexcept : vocabulary_(&vocabulary) {}

  /// Appends the tokens of `piece`, which starts at byte `offset` of the text. Code::invalid_argument names the first
  /// byte that is no token, Code::capacity a piece of 4 GiB or more; `ids` is then as before.
  Result<void> append(std::string_view piece, std::size_t offset, std::vector<TokenId>& ids);

 private:
  struct Node {
    TokenId id;
    std::uint32_t previous, next;  // `nodes_.size()` for none
    std::uint32_t rank;            // of the merge with the next one
  };

  void rank(std::uint32_t at);
  void merge(std::uint32_t at);

  const Vocabulary* vocabulary_;
  std::vector<Node> nodes_;
  std::vector<std::uint64_t>
      queue_;  // a heap of rank << 32 | node, lowest on top; an entry is stale if the node's rank differs
};

}  // namespace stet::text
