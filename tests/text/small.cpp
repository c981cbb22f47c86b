#include "text/small.hpp"

#include <unistd.h>

#include <atomic>
#include <fstream>
#include <stdexcept>

#include "text/alphabet.hpp"
#include "text/model.hpp"

namespace stet::text {

using nlohmann::json;

const Merges& small_merges() {
  static const Merges merges = {{"h", "e"},    {"l", "l"},        {"he", "ll"},    {"hell", "o"},
                                {" ", "t"},    {" t", "he"},      {" ", " "},      {"  ", "  "},
                                {"a", "\xc3"}, {"a\xc3", "\xa9"}, {"\xc3", "\xa9"}};
  return merges;
}

json small_vocab(const Merges& merges, const std::vector<std::string>& more) {
  json vocab = json::object();
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    vocab[letters_of(std::string_view(&c, 1))] = small_byte(static_cast<unsigned char>(byte));
  }
  int id = 256;
  for (const auto& [left, right] : merges) vocab[letters_of(left + right)] = id++;
  for (const std::string& text : more) vocab[text] = id++;
  return vocab;
}

std::string merges_text(const Merges& merges) {
  std::string text = "#version: 0.2\n";
  for (const auto& [left, right] : merges) text += letters_of(left) + " " + letters_of(right) + "\n";
  return text;
}

VocabFiles small_files() {
  VocabFiles files;
  files.vocab = {"vocab.json", small_vocab(small_merges(), {"<|endoftext|>"}).dump()};
  files.merges = {"merges.txt", merges_text(small_merges())};
  return files;
}

json small_tokenizer_json() {
  const json vocab = small_vocab(small_merges(), {"<|endoftext|>"});
  json merges = json::array();
  for (const auto& [left, right] : small_merges()) merges.push_back(letters_of(left) + " " + letters_of(right));
  const json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens",
           {{{"id", vocab.size() - 1},
             {"content", "<|endoftext|>"},
             {"single_word", false},
             {"lstrip", false},
             {"rstrip", false},
             {"normalized", true},
             {"special", true}}}},
          {"normalizer", nullptr},
          {"pre_tokenizer", byte_level},
          {"post_processor", byte_level},
          {"decoder", byte_level},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", ""},
            {"end_of_word_suffix", ""},
            {"fuse_unk", false},
            {"byte_fallback", false},
            {"vocab", vocab},
            {"merges", merges}}}};
}

namespace {

Tokenizer make(Result<Vocabulary> vocabulary) {
  if (!vocabulary) throw std::runtime_error(vocabulary.error().message);  // GoogleTest makes it a failure of the test
  return make_tokenizer(std::move(*vocabulary)).value();
}

}  // namespace

Tokenizer make(const VocabFiles& files) {
  return make(parse_vocab_files(files));
}

Tokenizer make(const json& tokenizer_json) {
  return make(parse_tokenizer_json({{"tokenizer.json", tokenizer_json.dump()}, {}}));
}

Folder::Folder() {
  static std::atomic<int> count = 0;
  path_ = std::filesystem::temp_directory_path() /
          ("stet-text-" + std::to_string(getpid()) + "-" + std::to_string(count++));
  std::filesystem::create_directory(path_);
}

Folder::~Folder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

void Folder::write(const std::string& name, std::string_view text) const {
  std::ofstream(path_ / name, std::ios::binary) << text;
}

std::vector<std::string> stream(const Tokenizer& tokenizer, const std::vector<TokenId>& ids) {
  StreamDecoder decoder(tokenizer);
  std::vector<std::string> pieces;
  for (const TokenId id : ids) pieces.push_back(decoder.push(id));
  pieces.push_back(decoder.finish());
  return pieces;
}

std::vector<std::string> spell(const Tokenizer& tokenizer, const std::vector<TokenId>& ids) {
  std::vector<std::string> bytes;
  for (const TokenId id : ids) bytes.emplace_back(tokenizer.token_bytes(id));
  return bytes;
}

}  // namespace stet::text
