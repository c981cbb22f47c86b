#include "text/fields.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "text/alphabet.hpp"
#include "text/utf8.hpp"

namespace stet::text {

using nlohmann::json;

const json& field(const json& object, std::string_view key) noexcept {
  static const json nothing;
  const auto found = object.find(key);
  return found == object.end() ? nothing : *found;
}

std::string shown(const json& value) {
  constexpr std::size_t kMost = 40;
  std::string text = value.dump(-1, ' ', true);
  if (text.size() > kMost) text = text.substr(0, kMost) + "...";
  return text;
}

bool is_off(const json& value) noexcept {
  if (value.is_string()) return value.get_ref<const std::string&>().empty();
  return value.is_null() || value == json(false) || (value.is_number() && value == json(0));
}

Result<void> check_off(const json& object, std::initializer_list<std::string_view> keys, const std::string& where) {
  for (const std::string_view key : keys) {
    const json& value = field(object, key);
    if (!is_off(value))
      return fail(Code::unsupported, fmt::format("{}: {} {} is not supported", where, key, shown(value)));
  }
  return {};
}

Result<void> check_known(const json& object, std::initializer_list<std::string_view> keys, const std::string& where) {
  for (const auto& [key, value] : object.items()) {
    if (std::find(keys.begin(), keys.end(), key) != keys.end()) continue;
    return fail(Code::unsupported, fmt::format("{}: {} {} is not known", where, in_quotes(key), shown(value)));
  }
  return {};
}

Result<std::int64_t> read_id(const json& value, const std::string& where) {
  if (!value.is_number_integer()) {
    return fail(Code::corrupt, fmt::format("{}: the id {} is not a whole number", where, shown(value)));
  }
  if (value.is_number_unsigned() && value.get<std::uint64_t>() >= kMaxVocab) {
    return fail(Code::corrupt, fmt::format("{}: id {} is not below the limit of {}", where, shown(value), kMaxVocab));
  }
  return value.get<std::int64_t>();
}

Result<std::string> read_content(const json& object, const std::string& where) {
  const json& content = field(object, "content");
  if (!content.is_string()) return fail(Code::corrupt, fmt::format("{}: without a text in \"content\"", where));
  if (auto off = check_off(object, {"single_word", "lstrip", "rstrip"}, where); !off) return pass(off);
  return content.get<std::string>();
}

Result<void> collect(AddedEntries& entries, const std::string& text, const AddedEntry& entry) {
  const auto [at, is_new] = entries.try_emplace(text, entry);
  if (is_new) return {};
  if (at->second.id != entry.id) {
    return fail(Code::corrupt, fmt::format("{}: {} has id {}, but {} in {}", entry.where, in_quotes(text), entry.id,
                                           at->second.id, at->second.where));
  }
  at->second.special |= entry.special;
  return {};
}

Result<void> add_vocabulary(VocabularyBuilder& builder, const json& vocab, const AddedEntries& added,
                            const std::string& name) {
  for (const auto& [key, value] : vocab.items()) {
    const std::string where = fmt::format("{}: key {}", name, in_quotes(key));
    const auto id = read_id(value, where);
    if (!id) return pass(id);
    const auto bytes = bytes_of(key);
    if (const auto entry = added.find(key); entry != added.end()) {
      if (entry->second.id != *id) {
        return fail(Code::corrupt,
                    fmt::format("{}: id {}, but {} in {}", where, *id, entry->second.id, entry->second.where));
      }
      if (bytes != key) continue;  // it stands for its text, not for the bytes that its letters would mean
    }
    if (!bytes) {
      return fail(Code::corrupt, fmt::format("{}: a character that stands for no byte, and no added token", where));
    }
    if (auto r = builder.add_token(*bytes, *id, where); !r) return r;
  }
  for (const auto& [text, entry] : added) {
    if (auto r = builder.add_added(text, entry.id, entry.special, entry.where); !r) return r;
  }
  return {};
}

Result<void> add_letters_merge(VocabularyBuilder& builder, std::string_view left, std::string_view right,
                               const std::string& where) {
  const auto left_bytes = bytes_of(left);
  const auto right_bytes = bytes_of(right);
  if (left_bytes && right_bytes) return builder.add_merge(*left_bytes, *right_bytes, where);
  return fail(Code::corrupt,
              fmt::format("{}: a character in {} stands for no byte", where, in_quotes(left_bytes ? right : left)));
}

}  // namespace stet::text
