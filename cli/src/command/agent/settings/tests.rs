use super::*;

#[test]
fn services_are_selected_by_name_or_its_start() {
    let services = |only: &[&str], except: &[&str]| {
        let list = |names: &[&str]| names.iter().map(|it| (*it).to_owned()).collect();
        Services {
            only: list(only),
            except: list(except),
        }
    };
    let all = services(&[], &[]);
    assert!(all.include("shop") && all.include(""));
    let some = services(&["shop", "web-*"], &["web-batch*"]);
    for (name, expected) in [
        ("shop", true),
        ("shop2", false),
        ("web-", true),
        ("web-front", true),
        ("web-batch7", false),
        ("", false),
    ] {
        assert_eq!(some.include(name), expected, "{name}");
    }
}
