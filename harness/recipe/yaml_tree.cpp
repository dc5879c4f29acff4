#include "harness/recipe/yaml_tree.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <sstream>

namespace assay {
namespace {

constexpr std::size_t kMaxDepth = 50;

/// Builds the tree from the parser's events, which still hold what YAML::Node drops: duplicates, anchors, tags.
class TreeBuilder final : public YAML::EventHandler {
 public:
  /// `start` is where the text starts; without a line, all of it is at that place.
  TreeBuilder(Place start, std::string key, Problems& problems)
      : start_(std::move(start)), key_(std::move(key)), problems_(problems) {
    root_.place = start_;
  }

  YamlNode take_root() { return std::move(root_); }

  Place place(const YAML::Mark& mark) const {
    return start_.line == 0 || mark.is_null() ? start_ : Place{start_.source, mark.line + 1, mark.column + 1};
  }

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (++documents_ > 1) problems_.add(place(mark), "", "a second document starts here; a recipe is one document");
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t) override { add(leaf(mark, YamlNode::Kind::null, "", false)); }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    problems_.add(place(mark), path(), "aliases (*name) are not read; write the value itself");
    add(leaf(mark, YamlNode::Kind::null, "", false));
  }
  void OnAnchor(const YAML::Mark& mark, const std::string& name) override {
    problems_.add(place(mark), path(), "anchors (&" + name + ") are not read; write the value itself");
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t, const std::string& value) override {
    refuse_tag(mark, tag);
    add(leaf(mark, YamlNode::Kind::scalar, value, tag == "!"));
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {
    refuse_tag(mark, tag);
    open(leaf(mark, YamlNode::Kind::list, "", false));
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t, YAML::EmitterStyle::value) override {
    refuse_tag(mark, tag);
    open(leaf(mark, YamlNode::Kind::map, "", false));
  }
  void OnMapEnd() override { close(); }

 private:
  struct Level {
    YamlNode node;
    bool has_key = false;
    YamlNode key;
  };

  YamlNode leaf(const YAML::Mark& mark, YamlNode::Kind kind, const std::string& text, bool quoted) const {
    YamlNode node;
    node.kind = kind;
    node.text = text;
    node.quoted = quoted;
    node.place = place(mark);
    return node;
  }

  std::string path() const {
    std::string text = key_;
    for (const auto& level : levels_) {
      if (level.has_key) text += (text.empty() ? "" : ".") + level.key.text;
    }
    return text;
  }

  void refuse_tag(const YAML::Mark& mark, const std::string& tag) {
    if (!tag.empty() && tag != "?" && tag != "!") {
      problems_.add(place(mark), path(), "tags (" + tag + ") are not read; write the value itself");
    }
  }

  void open(YamlNode node) {
    if (levels_.size() == kMaxDepth) throw YAML::Exception({}, "nested deeper than 50 levels");
    levels_.push_back({std::move(node), false, {}});
  }

  void close() {
    auto node = std::move(levels_.back().node);
    levels_.pop_back();
    add(std::move(node));
  }

  void add(YamlNode node) {
    if (levels_.empty()) {
      if (documents_ == 1) root_ = std::move(node);
      return;
    }
    auto& level = levels_.back();
    if (level.node.kind == YamlNode::Kind::list) {
      level.node.items.push_back(std::move(node));
    } else if (!level.has_key) {
      level.key = std::move(node);
      level.has_key = true;
    } else {
      add_entry(level, std::move(node));
      level.has_key = false;
    }
  }

  void add_entry(Level& level, YamlNode value) {
    const auto& key = level.key;
    // An absent value has the mark of whatever follows it.
    if (value.kind == YamlNode::Kind::null) value.place = key.place;
    if (key.kind != YamlNode::Kind::scalar) {
      problems_.add(key.place, "", "a key must be a name");
    } else if (key.text == "<<") {
      problems_.add(key.place, path(), "merge keys are not read; write the keys themselves");
    } else if (const auto* first = level.node.find(key.text)) {
      problems_.add(key.place, path(), "given twice, first at line " + std::to_string(first->place.line));
    } else {
      level.node.entries.push_back({key.text, key.place, std::move(value)});
    }
  }

  Place start_;
  std::string key_;
  Problems& problems_;
  int documents_ = 0;
  std::vector<Level> levels_;
  YamlNode root_;
};

YamlNode parse(const std::string& text, const Place& start, const std::string& key, Problems& problems) {
  std::istringstream stream(text);
  TreeBuilder builder(start, key, problems);
  try {
    YAML::Parser parser(stream);
    while (parser.HandleNextDocument(builder)) {
    }
  } catch (const YAML::Exception& error) {
    problems.add(builder.place(error.mark), key, "not valid YAML: " + error.msg);
    problems.throw_if_any();
  }
  return builder.take_root();
}

}  // namespace

const YamlNode* YamlNode::find(std::string_view key) const {
  const auto found = std::find_if(entries.begin(), entries.end(), [&](const Entry& entry) { return entry.key == key; });
  return found == entries.end() ? nullptr : &found->value;
}

YamlNode parse_yaml(const std::string& text, const std::string& source, Problems& problems) {
  return parse(text, {source, 1, 1}, "", problems);
}

YamlNode parse_override_value(const std::string& key, const std::string& value, const Place& place,
                              Problems& problems) {
  if (value.find_first_of("[{\"'") == 0) return parse(value, place, key, problems);
  YamlNode node;
  node.kind = value.empty() || value == "null" || value == "~" ? YamlNode::Kind::null : YamlNode::Kind::scalar;
  node.text = value;
  node.place = place;
  return node;
}

}  // namespace assay
