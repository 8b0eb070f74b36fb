#include "infer/cli/llama/chat_template.h"

#include <fmt/format.h>

#include <stdexcept>
#include <utility>

#include "infer/cli/llama/template_expression.h"
#include "infer/cli/llama/template_parser.h"
#include "infer/cli/text/utf8.h"

namespace opgraft::llama {
namespace {

// What a template may do, as bytes made or looked at: any real one needs far less.
size_t work_of(const std::vector<Message> &messages) {
  size_t work = 1 << 24;
  for (const Message &m : messages) work += 65536 + 64 * (m.role.size() + m.content.size());
  return work;
}

// One text of a template.
class Run {
 public:
  explicit Run(size_t work)
      : evaluator_(work, [this](const Statement &macro, Arguments given) { return call(macro, std::move(given)); }) {
    evaluator_.scope = &globals_;
  }

  std::string text(const std::vector<Statement> &statements, std::unordered_map<std::string_view, Value> given) {
    globals_.names = std::move(given);
    try {
      run(statements);
    } catch (const Raised &) {
      throw;
    } catch (const std::runtime_error &e) {
      throw std::runtime_error(fmt::format("line {}: {}", evaluator_.line, e.what()));
    }
    return std::move(out_);
  }

  Budget &budget() { return evaluator_.budget; }

 private:
  // A scope that lasts as long as this.
  struct Inside {
    Inside(Run &run, Scope *outer) : run(run), before(run.evaluator_.scope) {
      scope.outer = outer;
      run.evaluator_.scope = &scope;
    }
    ~Inside() { run.evaluator_.scope = before; }
    Run &run;
    Scope *before, scope;
  };

  void run(const std::vector<Statement> &statements) {
    const Evaluator::Deeper deeper(evaluator_);
    for (const Statement &s : statements) run(s);
  }

  void run(const Statement &s) {
    evaluator_.line = s.line;
    evaluator_.budget.spend(16 + s.text.size());
    for (const std::string &name : s.targets) evaluator_.budget.spend(name.size());
    switch (s.kind) {
      case Statement::kData: return write(s.text);
      case Statement::kPrint: return print(evaluator_.value(*s.expressions[0]), false, out_, evaluator_.budget);
      case Statement::kIf: {
        size_t i = 0;
        while (i < s.expressions.size() && !truth(evaluator_.value(*s.expressions[i]))) ++i;
        if (i < s.bodies.size()) run(s.bodies[i]);
        return;
      }
      case Statement::kFor: return for_(s);
      case Statement::kSet: return s.text.empty() ? assign(s, evaluator_.value(*s.expressions[0])) : set_attribute(s);
      case Statement::kSetBlock: return assign(s, filtered(s));
      case Statement::kFilter: return write(*filtered(s).text());
      case Statement::kMacro:
        if (evaluator_.scope != &globals_)
          throw std::runtime_error("a macro inside for, set or macro is not known here");
        globals_.names.insert_or_assign(s.text, &s);
    }
  }

  void write(std::string_view text) {
    evaluator_.budget.spend(text.size());
    out_ += text;
    if (out_.size() > kMostBytes) throw std::runtime_error(fmt::format("a text of more than {} bytes", kMostBytes));
  }

  // To one name, or to several that a value has items for.
  void assign(const Statement &s, Value value) {
    auto &names = evaluator_.scope->names;
    if (!s.unpacks) return void(names.insert_or_assign(s.targets[0], std::move(value)));
    auto items = items_of(value, evaluator_.budget);
    if (items.size() != s.targets.size())
      throw std::runtime_error(fmt::format("{} names for {} items", s.targets.size(), items.size()));
    for (size_t i = 0; i < items.size(); ++i) names.insert_or_assign(s.targets[i], std::move(items[i]));
  }

  void set_attribute(const Statement &s) {
    Value held = evaluator_.value(*s.expressions[0]);
    const Value space = evaluator_.name(s.text);
    auto *found = std::get_if<Namespace *>(&space.is);
    if (!found) throw std::runtime_error(fmt::format("{} is no namespace", s.text));
    evaluator_.budget.spend(64);
    (**found).insert_or_assign(s.targets[0], std::move(held));
  }

  void for_(const Statement &s) {
    std::vector<Value> items = items_of(evaluator_.value(*s.expressions[0]), evaluator_.budget);
    if (s.expressions[1]) {
      std::vector<Value> kept;
      for (Value &item : items) {
        const Inside inside(*this, evaluator_.scope);
        assign(s, item);
        if (truth(evaluator_.value(*s.expressions[1]))) kept.push_back(std::move(item));
      }
      items = std::move(kept);
    }
    if (items.empty()) {
      const Inside inside(*this, evaluator_.scope);
      return run(s.bodies[1]);
    }
    const Value over = evaluator_.budget.list(std::move(items));
    const auto loop = std::make_shared<const Loop>(Loop{std::get<std::shared_ptr<const Sequence>>(over.is)});
    for (; loop->at < loop->over->items.size(); ++loop->at) {
      const Inside inside(*this, evaluator_.scope);
      evaluator_.budget.spend(64);
      evaluator_.scope->names.emplace("loop", loop);
      assign(s, loop->over->items[loop->at]);
      run(s.bodies[0]);
    }
    --loop->at;
  }

  std::string body(const std::vector<Statement> &statements) {
    std::string before = std::exchange(out_, {});
    run(statements);
    return std::exchange(out_, std::move(before));
  }

  // A body's text through its filters, which stand around the empty name.
  Value filtered(const Statement &s) {
    const Inside inside(*this, evaluator_.scope);
    Value text = evaluator_.budget.text(body(s.bodies[0]));
    if (s.expressions[0]) {
      inside.run.evaluator_.scope->names.insert_or_assign("", std::move(text));
      text = evaluator_.value(*s.expressions[0]);
    }
    return s.kind == Statement::kFilter ? evaluator_.budget.text(printed(text, evaluator_.budget)) : text;
  }

  Value call(const Statement &macro, Arguments given) {
    const std::vector<std::string_view> names(macro.targets.begin(), macro.targets.end());
    auto all = bound(macro.text, std::move(given), names, 0);
    const Inside inside(*this, &globals_);
    const size_t first_default = names.size() - macro.expressions.size();
    for (size_t i = 0; i < names.size(); ++i) {
      if (!all[i] && i >= first_default) all[i] = evaluator_.value(*macro.expressions[i - first_default]);
      if (!all[i])
        all[i] =
            Undefined{std::make_shared<const std::string>(fmt::format("the argument '{}' is not given", names[i]))};
      evaluator_.scope->names.insert_or_assign(names[i], std::move(*all[i]));
    }
    ++evaluator_.macros;
    const std::string text = body(macro.bodies[0]);
    --evaluator_.macros;
    return evaluator_.budget.text(text);
  }

  Evaluator evaluator_;
  Scope globals_;
  std::string out_;
};

[[noreturn]] void fail(const std::runtime_error &e) {
  throw std::runtime_error(fmt::format("chat template: {}", e.what()));
}

}  // namespace

ChatTemplate::ChatTemplate(std::string_view source) {
  try {
    if (!text::is_utf8(source)) throw std::runtime_error("is not UTF-8");
    statements_ = std::make_unique<const std::vector<Statement>>(parsed(source));
  } catch (const std::runtime_error &e) {
    fail(e);
  }
}

ChatTemplate::~ChatTemplate() = default;
ChatTemplate::ChatTemplate(ChatTemplate &&) noexcept = default;
ChatTemplate &ChatTemplate::operator=(ChatTemplate &&) noexcept = default;

std::string ChatTemplate::text(const std::vector<Message> &messages, const std::string &bos_token,
                               const std::string &eos_token, bool add_generation_prompt) const {
  try {
    Run run(work_of(messages));
    const auto text = [&](const std::string &t) {
      if (!text::is_utf8(t)) throw std::runtime_error("a message is not UTF-8");
      return run.budget().text(t);
    };
    std::vector<Value> all;
    for (const Message &m : messages)
      all.push_back(run.budget().dict({{text("role"), text(m.role)}, {text("content"), text(m.content)}}));
    return run.text(*statements_, {{"messages", run.budget().list(std::move(all))},
                                   {"bos_token", text(bos_token)},
                                   {"eos_token", text(eos_token)},
                                   {"add_generation_prompt", add_generation_prompt}});
  } catch (const std::runtime_error &e) {
    fail(e);
  }
}

}  // namespace opgraft::llama
