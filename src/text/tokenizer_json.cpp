#include <fmt/format.h>

#include <string>
#include <string_view>

#include "text/fields.hpp"
#include "text/formats.hpp"
#include "text/utf8.hpp"

namespace stet::text {
namespace {

using nlohmann::json;

Failure corrupt(const std::string& where, std::string_view what) {
  return fail(Code::corrupt, fmt::format("{}: {}", where, what));
}

/// One of the top object's components, which must be a ByteLevel one.
Result<void> check_byte_level(const json& component, const std::string& where) {
  const json& type = component.is_object() ? field(component, "type") : component;
  if (type == "ByteLevel")
    return check_known(component, {"type", "add_prefix_space", "trim_offsets", "use_regex"}, where);
  return fail(Code::unsupported, fmt::format("{}: {} is not supported, only \"ByteLevel\" is", where, shown(type)));
}

Result<void> check_pre_tokenizer(const json& component, const std::string& where) {
  if (auto r = check_byte_level(component, where); !r) return r;
  // Hugging Face's code has no default for add_prefix_space, and a default of true for use_regex.
  if (field(component, "add_prefix_space") != false) {
    return fail(Code::unsupported, fmt::format("{}: add_prefix_space {} is not supported", where,
                                               shown(field(component, "add_prefix_space"))));
  }
  const json& use_regex = field(component, "use_regex");
  if (!use_regex.is_null() && use_regex != true) {
    return fail(Code::unsupported, fmt::format("{}: use_regex {} is not supported", where, shown(use_regex)));
  }
  return {};
}

Result<void> check_components(const json& top, const std::string& name) {
  if (auto r = check_known(top,
                           {"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
                            "post_processor", "decoder", "model"},
                           name);
      !r) {
    return r;
  }
  if (auto r = check_off(top, {"normalizer"}, name); !r) return r;
  if (auto r = check_pre_tokenizer(field(top, "pre_tokenizer"), name + ": pre_tokenizer"); !r) return r;
  if (auto r = check_byte_level(field(top, "decoder"), name + ": decoder"); !r) return r;
  const json& post_processor = field(top, "post_processor");  // ByteLevel's only moves offsets
  return post_processor.is_null() ? Result<void>() : check_byte_level(post_processor, name + ": post_processor");
}

/// unk_token and fuse_unk have no effect: a byte without a token is an error of encode().
Result<void> check_model(const json& model, const std::string& where) {
  if (!model.is_object()) return corrupt(where, "is not an object");
  const json& type = field(model, "type");  // old files have none
  if (!type.is_null() && type != "BPE") {
    return fail(Code::unsupported, fmt::format("{}: type {} is not supported, only \"BPE\" is", where, shown(type)));
  }
  if (auto r = check_known(model,
                           {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
                            "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"},
                           where);
      !r) {
    return r;
  }
  return check_off(
      model, {"dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback", "ignore_merges"}, where);
}

Result<AddedEntries> read_added(const json& list, const std::string& where) {
  AddedEntries entries;
  if (list.is_null()) return entries;
  if (!list.is_array()) return corrupt(where, "is not a list");
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::string here = fmt::format("{}[{}]", where, i);
    if (!list[i].is_object()) return corrupt(here, "is not an object");
    const auto text = read_content(list[i], here);
    if (!text) return pass(text);
    const auto id = read_id(field(list[i], "id"), here);
    if (!id) return pass(id);
    if (entries.contains(*text)) return corrupt(here, fmt::format("the added token {} again", in_quotes(*text)));
    entries.emplace(*text, AddedEntry{*id, !is_off(field(list[i], "special")), here});
  }
  return entries;
}

/// A merge is ["a", "b"], or "a b" in files before the end of 2024.
Result<void> add_merge(VocabularyBuilder& builder, const json& merge, const std::string& where) {
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
    return add_letters_merge(builder, merge[0].get_ref<const std::string&>(), merge[1].get_ref<const std::string&>(),
                             where);
  }
  if (merge.is_string()) {
    const std::string_view text = merge.get_ref<const std::string&>();
    const std::size_t space = text.find(' ');
    if (space != text.npos && text.find(' ', space + 1) == text.npos) {
      return add_letters_merge(builder, text.substr(0, space), text.substr(space + 1), where);
    }
  }
  return corrupt(where, fmt::format("{} is not a pair of tokens", shown(merge)));
}

Result<void> check_config(const Document& document) {
  const auto config = parse_object(document);
  if (!config) return pass(config);
  return check_off(*config, {"add_prefix_space", "add_bos_token", "add_eos_token"}, document.name);
}

}  // namespace

Result<Vocabulary> parse_tokenizer_json(const TokenizerFiles& files) {
  const std::string& name = files.tokenizer.name;
  const auto top = parse_object(files.tokenizer);
  if (!top) return pass(top);
  if (auto r = check_components(*top, name); !r) return pass(r);
  const json& model = field(*top, "model");
  if (auto r = check_model(model, name + ": model"); !r) return pass(r);
  if (files.tokenizer_config) {
    if (auto r = check_config(*files.tokenizer_config); !r) return pass(r);
  }
  const auto added = read_added(field(*top, "added_tokens"), name + ": added_tokens");
  if (!added) return pass(added);

  const json& vocab = field(model, "vocab");
  if (!vocab.is_object()) return corrupt(name + ": model.vocab", "is not an object");
  const json& merges = field(model, "merges");
  if (!merges.is_array()) return corrupt(name + ": model.merges", "is not a list");
  VocabularyBuilder builder;
  if (auto r = add_vocabulary(builder, vocab, *added, name + ": model.vocab"); !r) return pass(r);
  for (std::size_t i = 0; i < merges.size(); ++i) {
    if (auto r = add_merge(builder, merges[i], fmt::format("{}: model.merges[{}]", name, i)); !r) return pass(r);
  }
  return std::move(builder).build(name + ": model.vocab");
}

}  // namespace stet::text
