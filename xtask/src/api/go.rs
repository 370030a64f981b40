//! The exported items of the Go modules, from the sources as gofmt writes them.

/// Returns the exported items of a file, each in one line.
pub(super) fn items(text: &str) -> Vec<String> {
    let mut items = Vec::new();
    // Whether a line is in the braces of an exported type, or in the parentheses of constants or variables.
    let mut is_in_group = false;
    for line in text.lines() {
        let code = line.split(" //").next().unwrap_or_default().trim_end();
        if code.starts_with(['}', ')']) {
            is_in_group = false;
            continue;
        }
        if let Some(member) = code.strip_prefix('\t') {
            if is_in_group && starts_exported(member) {
                items.push(format!("    {}", without_value(member)));
            }
            continue;
        }
        let Some((word, rest)) = code.split_once(' ') else {
            continue;
        };
        match word {
            "const" | "var" if rest == "(" => is_in_group = true,
            "const" | "var" if starts_exported(rest) => {
                items.push(format!("{word} {}", without_value(rest)));
            }
            "type" if starts_exported(rest) => {
                is_in_group = rest.ends_with('{');
                items.push(format!("type {}", without_brace(rest)));
            }
            "func" if is_exported_function(rest) => {
                items.push(format!("func {}", without_brace(rest)));
            }
            _ => {}
        }
    }
    items
}

fn starts_exported(text: &str) -> bool {
    text.starts_with(|letter: char| letter.is_ascii_uppercase())
}

/// Whether a function is exported, or a method and its type.
fn is_exported_function(text: &str) -> bool {
    let Some((receiver, method)) = text.strip_prefix('(').and_then(|it| it.split_once(") ")) else {
        return starts_exported(text);
    };
    let of = receiver.rsplit([' ', '*']).next().unwrap_or_default();
    starts_exported(of) && starts_exported(method)
}

fn without_value(text: &str) -> &str {
    text.split(" = ").next().unwrap_or_default().trim_end()
}

/// Without the body, also one in the same line.
fn without_brace(text: &str) -> &str {
    let is_empty_type = text.ends_with("{}") && !text.contains('(');
    if is_empty_type {
        return text;
    }
    text.split(" {").next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::items;

    #[test]
    fn exported_items_are_listed_and_others_are_not() {
        let text = "package p\n\n// Limit limits.\nconst Limit = 7\n\nconst (\n\tFirst Kind = iota // the first\n\tsecond\n)\n\n\
            type Kind int\n\ntype Point struct {\n\tX, Y int\n\tz    int\n}\n\ntype hidden struct {\n\tX int\n}\n\n\
            func New() *Point { return nil }\n\nfunc (p *Point) Move(x int) error {\n\tvar Y = 1\n}\n\n\
            func (*Point) Stop() {}\n\nfunc (h hidden) Move() {}\n\nfunc help() {}\n";
        let expected = [
            "const Limit",
            "    First Kind",
            "type Kind int",
            "type Point struct",
            "    X, Y int",
            "func New() *Point",
            "func (p *Point) Move(x int) error",
            "func (*Point) Stop()",
        ];
        assert_eq!(items(text), expected);
    }
}
