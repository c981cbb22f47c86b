// What both formats share: ids, added tokens, the vocabulary object, settings that must be off.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "stet/result.hpp"
#include "text/vocabulary.hpp"

namespace stet::text {

/// An added token before it is known to fit the vocabulary. `where` names the place that gives its id.
struct AddedEntry {
  std::int64_t id = 0;
  bool special = false;
  std::string where;
};
using AddedEntries = std::map<std::string, AddedEntry, std::less<>>;  // by text

/// A null when the object lacks the key.
const nlohmann::json& field(const nlohmann::json& object, std::string_view key) noexcept;

/// A value for an error message, cut to one short line.
std::string shown(const nlohmann::json& value);

/// Whether it is null, false, 0 or "".
bool is_off(const nlohmann::json& value) noexcept;

/// Code::unsupported names the first of `keys` that is not off in `object`. `where` begins the message.
Result<void> check_off(const nlohmann::json& object, std::initializer_list<std::string_view> keys,
                       const std::string& where);

/// Code::unsupported names the first key of `object` that is not in `keys`: it might change results.
Result<void> check_known(const nlohmann::json& object, std::initializer_list<std::string_view> keys,
                         const std::string& where);

/// A whole number in the range of an id, up to what VocabularyBuilder checks.
Result<std::int64_t> read_id(const nlohmann::json& value, const std::string& where);

/// The text of an added token's object ({"content": ..., "lstrip": ..., ...}), which must not ask for more than a match
/// of its text.
Result<std::string> read_content(const nlohmann::json& object, const std::string& where);

/// Adds an entry, or joins it with one of the same text and id.
Result<void> collect(AddedEntries& entries, const std::string& text, const AddedEntry& entry);

/// All tokens of a vocabulary object, then the added ones. `name` begins the messages.
Result<void> add_vocabulary(VocabularyBuilder& builder, const nlohmann::json& vocab, const AddedEntries& added,
                            const std::string& name);

/// One merge, both parts in the letters of alphabet.hpp.
Result<void> add_letters_merge(VocabularyBuilder& builder, std::string_view left, std::string_view right,
                               const std::string& where);

}  // namespace stet::text
