#include "checkpoint/rank_group.h"

namespace assay {
namespace {

// On the wire: "+" and the result, or "-", the kind, a newline and the message.
std::string encode(const std::function<std::string()>& work) {
  try {
    return std::string("+").append(work());
  } catch (const Error& error) {
    return "-" + std::string(name_of(error.kind())) + "\n" + error.what();
  } catch (const std::exception& error) {
    return "-internal\n" + std::string(error.what());
  }
}

RankOutcome decode(const std::string& text) {
  if (text.starts_with('+')) return {true, ErrorKind::internal, text.substr(1)};
  const auto line_end = text.find('\n');
  ASSAY_CHECK(text.starts_with('-') && line_end != std::string::npos);
  return {false, error_kind_from_name(text.substr(1, line_end - 1)), text.substr(line_end + 1)};
}

}  // namespace

std::vector<RankOutcome> try_on_all_ranks(RankGroup& group, const std::function<std::string()>& work) {
  std::vector<RankOutcome> outcomes;
  for (const auto& text : group.all_gather(encode(work))) outcomes.push_back(decode(text));
  ASSAY_CHECK(outcomes.size() == static_cast<std::size_t>(group.world_size()));
  return outcomes;
}

std::vector<std::string> on_all_ranks(RankGroup& group, const std::string& what,
                                      const std::function<std::string()>& work) {
  std::vector<std::string> results;
  const auto outcomes = try_on_all_ranks(group, work);
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
    if (!outcomes[rank].ok) {
      throw Error(outcomes[rank].kind, what + ": rank " + std::to_string(rank) + ": " + outcomes[rank].text);
    }
    results.push_back(outcomes[rank].text);
  }
  return results;
}

}  // namespace assay
