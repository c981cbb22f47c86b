#include "text/vocabulary.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "text/utf8.hpp"

namespace stet::text {
namespace {

Failure corrupt(const std::string& where, std::string_view what) {
  return fail(Code::corrupt, fmt::format("{}: {}", where, what));
}

}  // namespace

std::uint32_t Vocabulary::rank(TokenId left, TokenId right) const noexcept {
  const auto begin = rights_.begin() + group_[static_cast<std::size_t>(left)];
  const auto end = rights_.begin() + group_[static_cast<std::size_t>(left) + 1];
  const auto found = std::lower_bound(begin, end, right, [](const Right& r, TokenId id) { return r.id < id; });
  return found != end && found->id == right ? found->rank : kNoRank;
}

Result<TokenId> VocabularyBuilder::take(std::string_view bytes, std::int64_t id, const std::string& where) {
  if (bytes.empty()) return corrupt(where, "an empty token");
  if (id < 0) return corrupt(where, fmt::format("id {} is negative", id));
  if (id >= kMaxVocab) return corrupt(where, fmt::format("id {} is not below the limit of {}", id, kMaxVocab));
  const auto narrow = static_cast<TokenId>(id);
  const auto [at, is_new] = tokens_.try_emplace(narrow, bytes);
  if (!is_new && at->second != bytes) {
    return corrupt(where, fmt::format("id {} is also that of the token {}", id, in_quotes(at->second)));
  }
  if (is_new) total_ += bytes.size();
  return narrow;
}

Result<void> VocabularyBuilder::add_token(std::string_view bytes, std::int64_t id, const std::string& where) {
  if (const auto known = ids_.find(bytes); known != ids_.end()) {
    return corrupt(where, fmt::format("a second token of the same bytes as id {}", known->second));
  }
  const auto taken = take(bytes, id, where);
  if (!taken) return pass(taken);
  ids_.emplace(bytes, *taken);
  return {};
}

Result<void> VocabularyBuilder::add_added(std::string_view text, std::int64_t id, bool special,
                                          const std::string& where) {
  if (added_.find(text) != added_.end())
    return corrupt(where, fmt::format("the added token {} again", in_quotes(text)));
  if (text.size() > kMaxAdded) {
    return corrupt(where, fmt::format("an added token of {} bytes, the limit is {}", text.size(), kMaxAdded));
  }
  const auto taken = take(text, id, where);
  if (!taken) return pass(taken);
  added_.emplace(text, AddedToken{std::string(text), *taken, special});
  return {};
}

Result<TokenId> VocabularyBuilder::find(std::string_view bytes, std::string_view what, const std::string& where) const {
  const auto found = ids_.find(bytes);
  if (found == ids_.end()) return corrupt(where, fmt::format("{} {} is not in the vocabulary", what, in_quotes(bytes)));
  return found->second;
}

Result<void> VocabularyBuilder::add_merge(std::string_view left, std::string_view right, const std::string& where) {
  const auto a = find(left, "the left part", where);
  if (!a) return pass(a);
  const auto b = find(right, "the right part", where);
  if (!b) return pass(b);
  const auto result = find(std::string(left) + std::string(right), "the result", where);
  if (!result) return pass(result);
  const auto rank = static_cast<std::uint32_t>(merges_.size());
  if (!merges_.try_emplace({*a, *b}, Merge{rank, *result}).second) {
    return corrupt(where, fmt::format("the merge of {} and {} appears twice", in_quotes(left), in_quotes(right)));
  }
  return {};
}

Result<Vocabulary> VocabularyBuilder::build(const std::string& where) && {
  if (tokens_.empty()) return corrupt(where, "a vocabulary without tokens");
  if (total_ >= Vocabulary::kNoRank) return corrupt(where, fmt::format("{} bytes of tokens", total_));

  Vocabulary made;
  const auto size = static_cast<std::size_t>(tokens_.rbegin()->first) + 1;
  made.blob_.reserve(total_);
  made.ends_.reserve(size + 1);
  for (const auto& [id, bytes] : tokens_) {
    made.ends_.resize(static_cast<std::size_t>(id) + 1, static_cast<std::uint32_t>(made.blob_.size()));
    made.blob_ += bytes;
  }
  made.ends_.push_back(static_cast<std::uint32_t>(made.blob_.size()));

  made.byte_.fill(kNoToken);
  for (int value = 0; value < 256; ++value) {
    const char byte = static_cast<char>(value);
    if (const auto found = ids_.find(std::string_view(&byte, 1)); found != ids_.end()) {
      made.byte_[static_cast<std::size_t>(value)] = found->second;
    }
  }

  made.group_.assign(size + 1, 0);
  made.merged_.resize(merges_.size());
  made.rights_.reserve(merges_.size());
  for (const auto& [pair, merge] : merges_) {
    made.rights_.push_back({pair.second, merge.rank});
    made.merged_[merge.rank] = merge.result;
    made.group_[static_cast<std::size_t>(pair.first) + 1] = static_cast<std::uint32_t>(made.rights_.size());
  }
  for (std::size_t i = 1; i <= size; ++i) made.group_[i] = std::max(made.group_[i], made.group_[i - 1]);

  for (auto& [text, token] : added_) made.added_.push_back(std::move(token));
  return made;
}

}  // namespace stet::text
