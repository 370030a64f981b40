//! The calls that `java_stacks.java` makes.

use crate::reader::Shown;

/// A method of the program and its callers, if these are its own, too. Lambdas stand for all that they contain.
const CALLERS: [(&str, &[&str]); 23] = [
    ("fib", &["fib", "work", "reflected", "lambda$work"]),
    ("small", &["area"]),
    ("smaller", &["small"]),
    ("area", &["twice"]),
    ("twice", &["shapes"]),
    ("shapes", &["work"]),
    ("streams", &["work"]),
    ("compare", &["lambda$sorted"]),
    ("sorted", &["work"]),
    ("thrown", &["thrown", "caught"]),
    ("caught", &["work"]),
    ("copied", &["work"]),
    ("locked", &["work"]),
    ("lockedAgain", &["locked"]),
    ("reflected", &[]),
    ("reflect", &["work"]),
    ("mapped", &["work"]),
    ("chain", &["work"]),
    ("formatted", &["work"]),
    ("deflated", &["work"]),
    ("deep", &["deep", "work"]),
    ("work", &["run"]),
    ("run", &["lambda$main"]),
];

/// Returns whether the program makes all calls between methods of its own, innermost first, and the outermost ones are those of
/// a thread.
pub(crate) fn is_possible(methods: &[Option<&Shown>]) -> bool {
    methods.windows(2).all(|pair| match pair {
        [Some(callee), Some(caller)] => is_possible_call(callee, caller),
        _ => true,
    })
}

/// Returns whether one method calls another one, as far as both are the program's own.
pub(crate) fn is_possible_call(callee: &Shown, caller: &Shown) -> bool {
    let Some((callee, caller)) = own(callee).zip(own(caller)) else {
        return true;
    };
    let (number, method) = callee;
    if let Some(number) = number {
        // `Made00042.applyAsInt` calls `Made00042.made00042`, which calls itself.
        return match method.strip_prefix("made") {
            Some(of_method) => of_method == number && caller.0 == Some(number),
            None => true,
        };
    }
    let known = CALLERS.iter().find(|it| it.0 == method);
    known.is_none_or(|(_, callers)| callers.iter().any(|it| caller.1.starts_with(it)))
}

/// The number of the class of a method, if it has one, and the method's name.
fn own(method: &Shown) -> Option<(Option<&str>, &str)> {
    let (class, name) = method.name.rsplit_once('.')?;
    match class.strip_prefix("Made") {
        Some(number) => Some((Some(number), name)),
        // Generated classes call lambdas.
        None if class.contains("$$Lambda") => None,
        None => class.starts_with("Stacks").then_some((None, name)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_the_program_does_not_make_are_known() {
        let shown = |name: &str| Shown {
            name: name.into(),
            file: String::new(),
            line: 0,
        };
        let is = |callee: &str, caller: &str| is_possible_call(&shown(callee), &shown(caller));
        assert!(is("Stacks.fib", "Stacks.fib"));
        assert!(is("Stacks.fib", "Stacks.lambda$work$4"));
        assert!(is("Stacks$Line.area", "Stacks$Shape.twice"));
        assert!(is("java.lang.Integer.compare", "Stacks.compare"));
        assert!(is("Made00007.made00007", "Made00007.applyAsInt"));
        assert!(!is("Stacks.fib", "Stacks.deep"));
        assert!(!is("Made00007.made00008", "Made00007.applyAsInt"));
        assert!(!is("Made00007.made00007", "Made00008.made00008"));
        assert!(!is("Made00007.made00007", "Stacks.work"));
    }
}
