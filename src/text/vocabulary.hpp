// Tokens, merges and added tokens of a byte-level BPE vocabulary, checked while they are collected.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "stet/result.hpp"
#include "stet/types.hpp"

namespace stet::text {

/// Ids are below this, so that a hostile file cannot ask for tables without end; the largest vocabularies in use are 16
/// times smaller.
inline constexpr TokenId kMaxVocab = TokenId{1} << 22;

/// Bytes of an added token, so that looking for them takes time linear in the text.
inline constexpr std::size_t kMaxAdded = 1024;

inline constexpr TokenId kNoToken = -1;

/// A token that is found by its text before anything else is done. The special ones only when asked for.
struct AddedToken {
  std::string text;
  TokenId id = kNoToken;
  bool special = false;
};

/// Immutable, made by VocabularyBuilder.
class Vocabulary {
 public:
  static constexpr std::uint32_t kNoRank = std::numeric_limits<std::uint32_t>::max();

  /// Largest id + 1.
  int size() const noexcept { return static_cast<int>(ends_.size()) - 1; }

  /// Empty when there is no such token.
  std::string_view bytes(TokenId id) const noexcept {
    if (id < 0 || id >= size()) return {};
    const auto i = static_cast<std::size_t>(id);
    return std::string_view(blob_).substr(ends_[i], ends_[i + 1] - ends_[i]);
  }

  /// The token of one byte; kNoToken when the vocabulary lacks it.
  TokenId byte(unsigned char value) const noexcept { return byte_[value]; }

  /// The place of the merge of two tokens in the list, which is its priority, or kNoRank.
  std::uint32_t rank(TokenId left, TokenId right) const noexcept;

  /// What the merge of that rank makes.
  TokenId merged(std::uint32_t rank) const noexcept { return merged_[rank]; }

  /// Sorted by text.
  const std::vector<AddedToken>& added() const noexcept { return added_; }

 private:
  friend class VocabularyBuilder;
  struct Right {
    TokenId id = kNoToken;
    std::uint32_t rank = kNoRank;
  };

  std::string blob_;                 // the bytes of all tokens by id
  std::vector<std::uint32_t> ends_;  // size + 1: token i is blob_[ends_[i], ends_[i + 1])
  std::array<TokenId, 256> byte_{};
  // Merges by left token, each group sorted by the right one. Searched, not hashed: no file can choose ids that
  // collide.
  std::vector<std::uint32_t> group_;  // size + 1
  std::vector<Right> rights_;
  std::vector<TokenId> merged_;  // by rank
  std::vector<AddedToken> added_;
};

/// Collects a vocabulary: first all tokens, then the merges in their order of priority, then build(). `where` names the
/// place in the file ("vocab.json: key \"a\"") and begins the message of an error, which is Code::corrupt and leaves
/// the builder as it was.
class VocabularyBuilder {
 public:
  /// A token of the BPE.
  Result<void> add_token(std::string_view bytes, std::int64_t id, const std::string& where);

  /// A token that is found by its text. It takes part in the BPE only if add_token gave the same bytes and id.
  Result<void> add_added(std::string_view text, std::int64_t id, bool special, const std::string& where);

  /// Both parts and the result must be tokens of the BPE.
  Result<void> add_merge(std::string_view left, std::string_view right, const std::string& where);

  /// Ends the collection. Without a single token the message begins with `where`.
  Result<Vocabulary> build(const std::string& where) &&;

 private:
  struct Merge {
    std::uint32_t rank = Vocabulary::kNoRank;
    TokenId result = kNoToken;
  };

  Result<TokenId> take(std::string_view bytes, std::int64_t id, const std::string& where);
  Result<TokenId> find(std::string_view bytes, std::string_view what, const std::string& where) const;

  std::map<TokenId, std::string> tokens_;
  std::size_t total_ = 0;                            // bytes of tokens_
  std::map<std::string, TokenId, std::less<>> ids_;  // of the BPE's tokens
  std::map<std::pair<TokenId, TokenId>, Merge> merges_;
  std::map<std::string, AddedToken, std::less<>> added_;
};

}  // namespace stet::text
