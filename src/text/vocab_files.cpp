#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <set>
#include <string>
#include <string_view>

#include "text/fields.hpp"
#include "text/formats.hpp"
#include "text/utf8.hpp"

namespace stet::text {
namespace {

using nlohmann::json;

/// What Hugging Face's files say about added tokens.
struct Notes {
  AddedEntries entries;                        // with an id of their own
  std::map<std::string, std::string> special;  // text -> the place that says so
};

Failure corrupt(const std::string& where, std::string_view what) {
  return fail(Code::corrupt, fmt::format("{}: {}", where, what));
}

/// The text of a special token, written as a string or as an added token's object.
Result<void> note_special(Notes& notes, const json& value, const std::string& where) {
  if (value.is_string()) {
    notes.special.emplace(value.get<std::string>(), where);
    return {};
  }
  if (!value.is_object()) return corrupt(where, fmt::format("{} is not a token", shown(value)));
  const auto text = read_content(value, where);
  if (!text) return pass(text);
  notes.special.emplace(*text, where);
  return {};
}

/// Reads "eos_token" and its like, and the lists of further ones, from special_tokens_map.json or
/// tokenizer_config.json.
Result<void> note_specials(Notes& notes, const json& object, const std::string& name) {
  for (const auto& [key, value] : object.items()) {
    const std::string where = fmt::format("{}: {}", name, in_quotes(key));
    const bool is_list = key == "additional_special_tokens" || key == "extra_special_tokens";
    const bool is_name = std::string_view(key).ends_with("_token") && !value.is_boolean();
    if (value.is_null() || (!is_list && !is_name)) continue;
    if (is_name) {
      if (auto r = note_special(notes, value, where); !r) return r;
      continue;
    }
    if (!value.is_structured()) return corrupt(where, "is not a list of tokens");
    for (const json& token : value) {
      if (auto r = note_special(notes, token, where); !r) return r;
    }
  }
  return {};
}

Result<void> note_added_tokens(Notes& notes, const Document& document) {
  const auto object = parse_object(document);
  if (!object) return pass(object);
  for (const auto& [text, value] : object->items()) {
    const std::string where = fmt::format("{}: key {}", document.name, in_quotes(text));
    const auto id = read_id(value, where);
    if (!id) return pass(id);
    if (auto r = collect(notes.entries, text, {*id, false, where}); !r) return r;
  }
  return {};
}

/// tokenizer_config.json's "added_tokens_decoder": an added token's object by its id.
Result<void> note_decoder(Notes& notes, const json& decoder, const std::string& name) {
  if (decoder.is_null()) return {};
  if (!decoder.is_object()) return corrupt(name, "added_tokens_decoder is not an object");
  for (const auto& [key, value] : decoder.items()) {
    const std::string where = fmt::format("{}: added_tokens_decoder {}", name, in_quotes(key));
    std::int64_t id = 0;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size()) return corrupt(where, "the key is not an id");
    if (!value.is_object()) return corrupt(where, "is not an object");
    const auto text = read_content(value, where);
    if (!text) return pass(text);
    if (auto r = collect(notes.entries, *text, {id, !is_off(field(value, "special")), where}); !r) return r;
  }
  return {};
}

Result<void> note_config(Notes& notes, const Document& document) {
  const auto config = parse_object(document);
  if (!config) return pass(config);
  if (auto off = check_off(*config, {"add_prefix_space", "add_bos_token", "add_eos_token"}, document.name); !off)
    return off;
  // vocab.json and merges.txt do not say how text is cut into pieces: the class does, and others cut otherwise.
  const json& type = field(*config, "tokenizer_class");
  if (!type.is_null() && type != "GPT2Tokenizer" && type != "GPT2TokenizerFast") {
    return fail(Code::unsupported, fmt::format("{}: tokenizer_class {} is not supported", document.name, shown(type)));
  }
  if (auto r = note_decoder(notes, field(*config, "added_tokens_decoder"), document.name); !r) return r;
  return note_specials(notes, *config, document.name);
}

Result<Notes> read_notes(const VocabFiles& files) {
  Notes notes;
  if (files.added_tokens) {
    if (auto r = note_added_tokens(notes, *files.added_tokens); !r) return pass(r);
  }
  if (files.special_tokens_map) {
    const auto map = parse_object(*files.special_tokens_map);
    if (!map) return pass(map);
    if (auto r = note_specials(notes, *map, files.special_tokens_map->name); !r) return pass(r);
  }
  if (files.tokenizer_config) {
    if (auto r = note_config(notes, *files.tokenizer_config); !r) return pass(r);
  }
  return notes;
}

/// Gives every special token its id: its own, or that of the vocabulary.
Result<void> resolve(Notes& notes, const json& vocab, const std::string& vocab_name) {
  if (notes.entries.empty() && notes.special.empty() && vocab.contains("<|endoftext|>")) {
    notes.special.emplace("<|endoftext|>", vocab_name);
  }
  for (const auto& [text, where] : notes.special) {
    if (const auto known = notes.entries.find(text); known != notes.entries.end()) {
      known->second.special = true;
      continue;
    }
    const auto found = vocab.find(text);
    if (found == vocab.end()) {
      return corrupt(where, fmt::format("the special token {} has no id in {}", in_quotes(text), vocab_name));
    }
    const auto id = read_id(*found, fmt::format("{}: key {}", vocab_name, in_quotes(text)));
    if (!id) return pass(id);
    notes.entries.emplace(text, AddedEntry{*id, true, where});
  }
  return {};
}

Result<void> add_merges(VocabularyBuilder& builder, const Document& merges) {
  std::string_view rest = merges.text;
  for (int line = 1; !rest.empty(); ++line) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view text = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (text.ends_with('\r')) text.remove_suffix(1);
    if (line == 1 && text.starts_with("#version")) continue;
    const std::string where = fmt::format("{}:{}", merges.name, line);
    const std::size_t space = text.find(' ');
    if (space == 0 || space == text.npos || space + 1 == text.size() || text.find(' ', space + 1) != text.npos) {
      return corrupt(where, fmt::format("{} is not two tokens with a space between", in_quotes(text)));
    }
    if (auto r = add_letters_merge(builder, text.substr(0, space), text.substr(space + 1), where); !r) return r;
  }
  return {};
}

}  // namespace

Result<Vocabulary> parse_vocab_files(const VocabFiles& files) {
  const auto vocab = parse_object(files.vocab);
  if (!vocab) return pass(vocab);
  auto notes = read_notes(files);
  if (!notes) return pass(notes);
  if (auto r = resolve(*notes, *vocab, files.vocab.name); !r) return pass(r);
  VocabularyBuilder builder;
  if (auto r = add_vocabulary(builder, *vocab, notes->entries, files.vocab.name); !r) return pass(r);
  if (auto r = add_merges(builder, files.merges); !r) return pass(r);
  return std::move(builder).build(files.vocab.name);
}

}  // namespace stet::text
