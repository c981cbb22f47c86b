#include "stet/tokenizer.hpp"

#include <fmt/format.h>

#include <utility>

#include "text/bpe.hpp"
#include "text/formats.hpp"
#include "text/model.hpp"

namespace stet {

Tokenizer::Tokenizer(std::unique_ptr<const Impl> impl) noexcept : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Result<Tokenizer> text::make_tokenizer(Vocabulary vocabulary) {
  auto pre_tokenizer = PreTokenizer::make();
  if (!pre_tokenizer) return pass(pre_tokenizer);
  return Tokenizer(std::make_unique<const Tokenizer::Impl>(std::move(vocabulary), std::move(*pre_tokenizer)));
}

Result<Tokenizer> Tokenizer::load(const std::filesystem::path& folder) {
  auto vocabulary = text::read_folder(folder);
  if (!vocabulary) return pass(vocabulary);
  return text::make_tokenizer(std::move(*vocabulary));
}

Result<std::vector<TokenId>> Tokenizer::encode(std::string_view text, bool parse_special) const {
  std::vector<TokenId> ids;
  text::Merger merger(impl_->vocabulary);
  // Cut at added tokens first, so that what is between them is encoded as if it stood alone: the reference's order.
  const auto append = [&](std::size_t begin, std::size_t end) -> Result<void> {
    const std::string_view part = text.substr(begin, end - begin);
    const auto cuts = impl_->pre_tokenizer.split(part);
    if (!cuts) return pass(cuts);
    std::size_t at = 0;
    for (const std::size_t cut : *cuts) {
      if (auto r = merger.append(part.substr(at, cut - at), begin + at, ids); !r) return r;
      at = cut;
    }
    return {};
  };
  const text::AddedFinder& finder = parse_special ? impl_->all_added : impl_->always_added;
  std::size_t at = 0;
  while (const auto hit = finder.find(text, at)) {
    if (auto r = append(at, hit->begin); !r) return pass(r);
    ids.push_back(hit->id);
    at = hit->end;
  }
  if (auto r = append(at, text.size()); !r) return pass(r);
  return ids;
}

Result<std::string> Tokenizer::decode(std::span<const TokenId> ids) const {
  std::string text;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const std::string_view bytes = token_bytes(ids[i]);
    if (bytes.empty()) {
      return fail(Code::invalid_argument, fmt::format("token {}: the vocabulary has no id {}", i, ids[i]));
    }
    text += bytes;
  }
  return text;
}

std::string_view Tokenizer::token_bytes(TokenId id) const noexcept {
  return impl_->vocabulary.bytes(id);
}

int Tokenizer::vocab_size() const noexcept {
  return impl_->vocabulary.size();
}

std::optional<TokenId> Tokenizer::special(std::string_view text) const noexcept {
  for (const text::AddedToken& token : impl_->vocabulary.added()) {
    if (token.special && token.text == text) return token.id;
  }
  return std::nullopt;
}

}  // namespace stet
