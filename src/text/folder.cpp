#include <fmt/format.h>

#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

#include "base/file.hpp"
#include "text/formats.hpp"

namespace stet::text {
namespace {

namespace fs = std::filesystem;

/// Several times the largest tokenizer.json in use.
constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 26;

/// What cannot be looked at counts as there, so that reading it gives the reason.
bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error) || error;
}

Result<Document> read(const fs::path& path) {
  auto text = base::read_text(path, kMaxBytes);
  if (!text) return pass(text);
  return Document{path.string(), std::move(*text)};
}

Result<std::optional<Document>> read_if_there(const fs::path& path) {
  if (!is_there(path)) return std::nullopt;
  auto document = read(path);
  if (!document) return pass(document);
  return std::move(*document);
}

Result<Vocabulary> read_vocab_files(const fs::path& vocab_path, const fs::path& merges_path) {
  auto vocab = read(vocab_path);
  if (!vocab) return pass(vocab);
  auto merges = read(merges_path);
  if (!merges) return pass(merges);
  const fs::path folder = vocab_path.parent_path();
  auto added_tokens = read_if_there(folder / "added_tokens.json");
  if (!added_tokens) return pass(added_tokens);
  auto special_tokens_map = read_if_there(folder / "special_tokens_map.json");
  if (!special_tokens_map) return pass(special_tokens_map);
  auto config = read_if_there(folder / "tokenizer_config.json");
  if (!config) return pass(config);
  return parse_vocab_files({std::move(*vocab), std::move(*merges), std::move(*added_tokens),
                            std::move(*special_tokens_map), std::move(*config)});
}

Result<Vocabulary> read_tokenizer_json(const fs::path& path) {
  auto tokenizer = read(path);
  if (!tokenizer) return pass(tokenizer);
  auto config = read_if_there(path.parent_path() / "tokenizer_config.json");
  if (!config) return pass(config);
  return parse_tokenizer_json({std::move(*tokenizer), std::move(*config)});
}

}  // namespace

Result<Vocabulary> read_folder(const fs::path& folder) {
  constexpr std::pair<const char*, const char*> kPairs[] = {{"vocab.json", "merges.txt"},
                                                            {"encoder.json", "vocab.bpe"}};
  for (const auto& [vocab, merges] : kPairs) {
    if (is_there(folder / vocab) && is_there(folder / merges)) return read_vocab_files(folder / vocab, folder / merges);
  }
  if (is_there(folder / "tokenizer.json")) return read_tokenizer_json(folder / "tokenizer.json");
  for (const auto& [vocab, merges] : kPairs) {
    for (const auto& [there, missing] : {std::pair(vocab, merges), std::pair(merges, vocab)}) {
      if (!is_there(folder / there)) continue;
      return fail(Code::corrupt, fmt::format("{}: it needs {} beside it", (folder / there).string(), missing));
    }
  }
  return fail(
      Code::not_found,
      fmt::format("{}: no vocabulary (vocab.json and merges.txt, encoder.json and vocab.bpe, or tokenizer.json)",
                  folder.string()));
}

}  // namespace stet::text
