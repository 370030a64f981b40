//! The state of the view, and what keys do to it.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::opened::{Line, LineKind, Open};
use super::rows::{By, Key, Row, Sort};
use super::time::{Kinds, Present, Wait};
use super::window::{Context, Thread};

/// Maximum length of a filter, in characters.
const MAX_FILTER: usize = 100;

/// The user's selections.
#[derive(Clone, Debug, Default)]
pub(super) struct State {
    pub(super) by: By,
    /// The attribute in its own column, and of [`By::Attribute`]; empty for none.
    pub(super) attribute: String,
    /// True if the user selected the attribute.
    pub(super) is_chosen: bool,
    /// Attributes that rows can be grouped by.
    pub(super) keys: Vec<String>,
    pub(super) kinds: Kinds,
    pub(super) sort: Sort,
    pub(super) reversed: bool,
    pub(super) paused: bool,
    pub(super) filter: String,
    /// The lines of an opened row that are shown have this text.
    pub(super) search: String,
    /// True if keys edit the filter, or the search of an opened row.
    pub(super) typing: bool,
    /// The opened row, and what was opened in it.
    pub(super) opened: Vec<Open>,
    pub(super) help: bool,
    selected: Option<Key>,
    /// Its index, or its last one.
    pub(super) at: Option<usize>,
    /// Index of the first row on the screen.
    pub(super) top: usize,
}

/// The effect of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Compute the rows again.
    Show,
    Quit,
    Suspend,
    Pause,
}

impl State {
    pub(super) fn new(by: By, attribute: String) -> Self {
        Self {
            by,
            attribute,
            ..Self::default()
        }
    }

    /// The same for rows with these kinds of time.
    pub(super) fn with_kinds(self, kinds: Kinds) -> Self {
        let sort = Sort::all(kinds).into_iter().next();
        let sort = sort.unwrap_or_default();
        Self {
            kinds,
            sort,
            ..self
        }
    }

    /// Handles a key. `lines` are those of an opened row; `page` is the number of rows, or lines, on
    /// the screen.
    pub(super) fn key(
        &mut self,
        key: KeyEvent,
        rows: &[Row],
        lines: &[Line],
        page: usize,
    ) -> Action {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c') if control => return Action::Quit,
            KeyCode::Char('z') if control => return Action::Suspend,
            _ if self.typing => {
                self.typed(key.code);
                return Action::Show;
            }
            KeyCode::Char(_) if control => return Action::Show,
            _ if self.help => {
                self.help = false;
                return match key.code {
                    KeyCode::Char('q') => Action::Quit,
                    _ => Action::Show,
                };
            }
            _ => {}
        }
        let page = page.max(1) as isize;
        if self.is_for_opened(key.code, lines, page) {
            return Action::Show;
        }
        match key.code {
            KeyCode::Char('q') => return Action::Quit,
            KeyCode::Esc => return self.back(),
            KeyCode::Char(' ' | 'p') => return Action::Pause,
            KeyCode::Char('g') | KeyCode::Tab => self.group(1),
            KeyCode::Char('G') | KeyCode::BackTab => self.group(-1),
            KeyCode::Char('s') => {
                self.sort = self.sort.next(self.kinds);
                self.reversed = false;
            }
            KeyCode::Char('r') => self.reversed = !self.reversed,
            KeyCode::Char('/') => self.typing = true,
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => self.help = true,
            KeyCode::Enter => {
                if self.at.is_none() {
                    self.select(0, rows);
                }
                let (by, selected) = (self.by.clone(), self.selected.clone());
                self.opened.extend(selected.map(|key| Open::new(by, key)));
            }
            KeyCode::Down | KeyCode::Char('j') => self.step(1, rows),
            KeyCode::Up | KeyCode::Char('k') => self.step(-1, rows),
            KeyCode::PageDown => self.step(page, rows),
            KeyCode::PageUp => self.step(-page, rows),
            KeyCode::Home => self.select(0, rows),
            KeyCode::End => self.select(rows.len().saturating_sub(1), rows),
            _ => {}
        }
        Action::Show
    }

    fn typed(&mut self, key: KeyCode) {
        let text = if self.opened.is_empty() {
            &mut self.filter
        } else {
            &mut self.search
        };
        match key {
            KeyCode::Enter => self.typing = false,
            KeyCode::Esc => {
                self.typing = false;
                text.clear();
            }
            KeyCode::Backspace => drop(text.pop()),
            KeyCode::Char(character) if text.chars().count() < MAX_FILTER => {
                text.push(character);
            }
            _ => {}
        }
    }

    /// Returns true if a key is for the opened row, if there is one: moves among its lines, or opens
    /// a trace.
    fn is_for_opened(&mut self, key: KeyCode, lines: &[Line], page: isize) -> bool {
        let Some(open) = self.opened.last_mut() else {
            return false;
        };
        let last = lines.len().saturating_sub(1);
        let step = |by: isize| open.at.saturating_add_signed(by).min(last);
        open.at = match key {
            KeyCode::Down | KeyCode::Char('j') => step(1),
            KeyCode::Up | KeyCode::Char('k') => step(-1),
            KeyCode::PageDown => step(page),
            KeyCode::PageUp => step(-page),
            KeyCode::Home => 0,
            KeyCode::End => last,
            KeyCode::Enter => {
                if let Some(LineKind::Trace(id)) = lines.get(open.at).map(|line| line.kind)
                    && open.key != Key::Trace(id)
                {
                    self.opened.push(Open::new(By::Trace, Key::Trace(id)));
                    self.search.clear();
                }
                return true;
            }
            _ => return false,
        };
        true
    }

    /// Closes what was opened last; quits if nothing is open.
    fn back(&mut self) -> Action {
        if !self.search.is_empty() {
            self.search.clear();
        } else if !self.opened.is_empty() {
            self.opened.pop();
        } else if !self.filter.is_empty() {
            self.filter.clear();
        } else if self.at.is_some() {
            (self.selected, self.at, self.top) = (None, None, 0);
        } else {
            return Action::Quit;
        }
        Action::Show
    }

    /// Groups by the next of: thread, each attribute, trace, process, service, function.
    fn group(&mut self, step: isize) {
        let mut all = vec![By::Thread];
        all.extend(self.keys.iter().cloned().map(By::Attribute));
        all.extend([By::Trace, By::Process, By::Service, By::Function]);
        let at = all.iter().position(|by| *by == self.by).unwrap_or(0);
        let next = (at as isize + step).rem_euclid(all.len() as isize);
        self.by = all.swap_remove(next as usize);
        if let By::Attribute(key) = &self.by {
            self.attribute.clone_from(key);
        }
        // Elsewhere it is the usual one again.
        self.is_chosen = matches!(self.by, By::Attribute(_));
        (self.selected, self.at, self.top) = (None, None, 0);
        self.opened.clear();
        self.search.clear();
    }

    fn step(&mut self, by: isize, rows: &[Row]) {
        let to = match self.at {
            Some(at) => at.saturating_add_signed(by),
            None => 0,
        };
        self.select(to, rows);
    }

    fn select(&mut self, at: usize, rows: &[Row]) {
        let at = at.min(rows.len().saturating_sub(1));
        self.selected = rows.get(at).map(|row| row.key.clone());
        self.at = self.selected.is_some().then_some(at);
    }

    /// Finds the selected row among new ones. If it is gone, the row in its place is selected, unless
    /// it is opened.
    pub(super) fn follow(&mut self, rows: &[Row]) {
        let Some(selected) = &self.selected else {
            return;
        };
        match rows.iter().position(|row| row.key == *selected) {
            Some(at) => self.at = Some(at),
            None if !self.opened.is_empty() => self.at = None,
            None => self.select(self.at.unwrap_or(0), rows),
        }
    }

    /// Scrolls so that the selected row, or the selected line of an opened one, is on the page.
    pub(super) fn scroll(&mut self, page: usize, rows: usize, lines: usize) {
        if let Some(open) = self.opened.last_mut() {
            open.at = open.at.min(lines.saturating_sub(1));
            open.top = open.top.clamp((open.at + 1).saturating_sub(page), open.at);
            open.top = open.top.min(lines.saturating_sub(page));
            return;
        }
        if let Some(at) = self.at {
            self.top = self.top.clamp((at + 1).saturating_sub(page), at);
        }
        self.top = self.top.min(rows.saturating_sub(page));
    }

    /// Returns whether a row, a thread, process or context of its samples, or what it waited for, contains the
    /// filter's text.
    pub(super) fn takes(&self, row: &Row) -> bool {
        if self.filter.is_empty() {
            return true;
        }
        let wanted = self.filter.to_lowercase();
        let has = |text: &str| text.to_lowercase().contains(&wanted);
        let has_thread = |thread: &Thread| {
            has(&thread.name)
                || has(&thread.process.name)
                || has(&thread.process.pid.to_string())
                || has(&thread.tid.to_string())
        };
        let has_context = |context: &Context| {
            let id = |id: Option<String>| id.as_deref().is_some_and(has);
            context.attribute(&self.attribute).is_some_and(has)
                || id(context.trace_id().map(|id| id.to_string()))
                || id(context.span_id().map(|id| id.to_string()))
        };
        let present = row.present.as_ref().map(Present::text);
        has(&row.name())
            || present.as_deref().is_some_and(has)
            || row
                .wait
                .as_ref()
                .map(Wait::text)
                .as_deref()
                .is_some_and(has)
            || row.value.as_deref().is_some_and(has)
            || row.all_threads.iter().any(|thread| has_thread(thread))
            || (row.all_works.iter()).any(|work| work.context().is_some_and(has_context))
    }
}

#[cfg(test)]
mod tests {
    use otelctx_profile::sample::Counts;

    use super::super::rows::rows;
    use super::super::window::Window;
    use super::super::window::tests::{add, context, thread};
    use super::*;

    fn three() -> Vec<Row> {
        let mut window = Window::new(0, 0);
        for tid in 1..=3 {
            let context = context(tid as u64, &format!("/route-{tid}"));
            add(&mut window, thread(9, tid), Some(context), 4 - tid as usize);
        }
        window.close(1, Counts::default());
        rows(&window.all(), &By::Thread, "http.route", &mut |_, _| {
            Key::Nothing
        })
    }

    fn press(state: &mut State, code: KeyCode) -> Action {
        state.key(KeyEvent::from(code), &three(), &[], 2)
    }

    fn state() -> State {
        let mut state = State::new(By::Thread, "http.route".into());
        state.keys = vec!["http.route".into(), "tenant".into()];
        state
    }

    #[test]
    fn keys_cycle_through_all_groupings() {
        let mut state = state();
        let mut seen = Vec::new();
        for _ in 0..7 {
            press(&mut state, KeyCode::Char('g'));
            seen.push((state.by.clone(), state.attribute.clone()));
        }
        let attribute = |name: &str| (By::Attribute(name.into()), name.to_owned());
        let tenant = "tenant".to_owned();
        assert_eq!(
            seen,
            [
                attribute("http.route"),
                attribute("tenant"),
                (By::Trace, tenant.clone()),
                (By::Process, tenant.clone()),
                (By::Service, tenant.clone()),
                (By::Function, tenant.clone()),
                (By::Thread, tenant),
            ]
        );
        assert!(!state.is_chosen);
        press(&mut state, KeyCode::Char('G'));
        assert_eq!(state.by, By::Function);
        for _ in 0..4 {
            press(&mut state, KeyCode::Char('G'));
        }
        assert!(state.is_chosen);
    }

    #[test]
    fn the_chosen_row_stays_chosen_where_rows_change_places() {
        let mut state = state();
        press(&mut state, KeyCode::Down);
        press(&mut state, KeyCode::Down);
        assert_eq!(state.at, Some(1));
        let mut rows = three();
        rows.rotate_right(1);
        state.follow(&rows);
        assert_eq!(state.at, Some(2));
        state.scroll(2, 3, 0);
        assert_eq!(state.top, 1);
        press(&mut state, KeyCode::Home);
        state.scroll(2, 3, 0);
        assert_eq!((state.at, state.top), (Some(0), 0));
        press(&mut state, KeyCode::End);
        assert_eq!(state.at, Some(2));
        state.follow(&three()[..2]);
        assert_eq!(state.at, Some(1), "another has its place");
        state.follow(&[]);
        assert_eq!(state.at, None);
    }

    #[test]
    fn escape_leaves_one_thing_after_another() {
        let mut state = state();
        press(&mut state, KeyCode::Char('/'));
        for character in "Route-2q".chars() {
            press(&mut state, KeyCode::Char(character));
        }
        press(&mut state, KeyCode::Backspace);
        press(&mut state, KeyCode::Enter);
        let taken: Vec<bool> = three().iter().map(|row| state.takes(row)).collect();
        assert_eq!(taken, [false, true, false]);
        press(&mut state, KeyCode::Enter);
        assert_eq!(state.opened.len(), 1);
        press(&mut state, KeyCode::Char('?'));
        assert!(state.help);
        for _ in 0..4 {
            assert_eq!(press(&mut state, KeyCode::Esc), Action::Show);
        }
        assert!(
            !state.help && state.opened.is_empty() && state.filter.is_empty() && state.at.is_none()
        );
        assert_eq!(press(&mut state, KeyCode::Esc), Action::Quit);
    }

    /// A row of a function has samples of many threads, of which the view names one.
    #[test]
    fn a_filter_finds_every_thread_and_context_of_a_row() {
        let mut window = Window::new(0, 0);
        for (pid, tid) in [(7, 71), (8, 81), (8, 82)] {
            let context = context(tid as u64, &format!("/route-{tid}"));
            add(
                &mut window,
                thread(pid, tid),
                Some(context),
                100 - tid as usize,
            );
        }
        window.close(1, Counts::default());
        let rows = rows(&window.all(), &By::Function, "http.route", &mut |_, _| {
            Key::Nothing
        });
        let [row] = &rows[..] else { panic!("{rows:?}") };
        let mut state = state();
        let id = |number: u8| format!("{number:032x}");
        for found in [
            "service-7",
            "service-8",
            "thread-71",
            "THREAD-82",
            "/route-71",
            "/route-82",
            &id(71),
            &id(82),
        ] {
            state.filter = found.into();
            assert!(state.takes(row), "{found}");
        }
        for missing in ["service-9", "thread-72", "/route-83", &id(83)] {
            state.filter = missing.into();
            assert!(!state.takes(row), "{missing}");
        }
    }

    #[test]
    fn the_usual_keys_quit_pause_and_suspend() {
        let mut state = state();
        let control = |key| KeyEvent::new(KeyCode::Char(key), KeyModifiers::CONTROL);
        state.typing = true;
        assert_eq!(state.key(control('c'), &[], &[], 1), Action::Quit);
        assert_eq!(state.key(control('z'), &[], &[], 1), Action::Suspend);
        assert_eq!(press(&mut state, KeyCode::Char('q')), Action::Show);
        state.typing = false;
        assert_eq!(press(&mut state, KeyCode::Char('q')), Action::Quit);
        assert_eq!(press(&mut state, KeyCode::Char(' ')), Action::Pause);
        state.help = true;
        assert_eq!(press(&mut state, KeyCode::Char('q')), Action::Quit);
    }
}
