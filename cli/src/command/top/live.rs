//! The view on a terminal: takes samples, draws, handles keys.

use std::time::{Duration, Instant};

use otelctx_sampler::INTERVAL;
use ratatui::crossterm::event::{Event, KeyEventKind};

use super::feed::Feed;
use super::names::Names;
use super::opened::{Opened, Source};
use super::rows::{By, attached, attribute_keys, rows, sort, sum};
use super::screen::{Input, Screen};
use super::state::{Action, State};
use super::view::{self, Shown};
use super::{Plan, attribute, times_by_value};
use crate::error::Error;
use crate::interrupt;
use crate::output::terminal::Terminal;

/// Time until the first view, unless the interval is shorter.
const FIRST_INTERVAL: Duration = Duration::from_millis(250);

/// Shows the view until the user quits, the terminal disappears, or the targets have ended.
pub(super) fn run(feed: &mut Feed<'_>, plan: &Plan) -> Result<(), Error> {
    let mut screen = Screen::enter().map_err(Error::Output)?;
    match show(&mut screen, feed, plan) {
        Err(Error::Output(_)) if screen.is_gone() => Ok(()),
        result => result,
    }
}

fn show(screen: &mut Screen, feed: &mut Feed<'_>, plan: &Plan) -> Result<(), Error> {
    let colours = Terminal::of_stdout().colours;
    let mut state = State::new(plan.by.clone(), String::new()).with_kinds(plan.kinds);
    let mut names = Names::new(feed.sampler.files(), &plan.languages);
    let mut next = Instant::now() + FIRST_INTERVAL.min(plan.interval);
    let mut shown = shown(feed, plan, &mut state, &mut names);
    loop {
        let mut changed = screen.job_control().map_err(Error::Output)?;
        if changed && !state.paused {
            feed.restart();
        }
        let area = screen.area().map_err(Error::Output)?;
        let page = view::page(area, &shown);
        state.scroll(page, shown.rows.len(), shown.lines().len());
        let drawn = screen.draw(|frame| {
            view::draw(frame.buffer_mut(), area, &state, &shown, colours);
        });
        drawn.map_err(Error::Output)?;
        // Waits until there is something new to draw.
        while !changed {
            // A paused view stays after all targets have ended.
            let is_over = plan.is_over() || !state.paused && plan.have_targets_ended(feed);
            if interrupt::is_caught() || is_over {
                return Ok(());
            }
            loop {
                let event = match screen.input(INTERVAL).map_err(Error::Output)? {
                    Input::Came(event) => event,
                    Input::Nothing => break,
                    Input::Gone => return Ok(()),
                };
                match event {
                    Event::Key(key) if key.kind != KeyEventKind::Release => {
                        let page = view::page(area, &shown);
                        match state.key(key, &shown.rows, shown.lines(), page) {
                            Action::Quit => return Ok(()),
                            Action::Suspend => {
                                screen.suspend().map_err(Error::Output)?;
                                if !state.paused {
                                    feed.restart();
                                }
                            }
                            Action::Pause => {
                                state.paused = !state.paused;
                                if !state.paused {
                                    feed.restart();
                                    next = Instant::now() + FIRST_INTERVAL.min(plan.interval);
                                }
                            }
                            Action::Show => {}
                        }
                    }
                    Event::Resize(..) => {}
                    _ => continue,
                }
                changed = true;
                break;
            }
            if state.paused {
                feed.skip();
            } else {
                feed.drain();
                if Instant::now() >= next {
                    feed.close();
                    feed.renew();
                    next = Instant::now() + plan.interval;
                    changed = true;
                }
                changed |= feed.reveal();
            }
            changed |= names.update(&feed.catalog, feed.generation);
            changed |= screen.wants_attention();
        }
        let empty = feed.window.wall() == 0;
        if !(empty && shown.share.wall > 0) {
            shown = self::shown(feed, plan, &mut state, &mut names);
        }
    }
}

fn shown(feed: &Feed<'_>, plan: &Plan, state: &mut State, names: &mut Names) -> Shown {
    let window = &feed.window;
    let mut samples = names.selected(&feed.catalog, window, &plan.functions);
    let idle = plan.hide_idle(&mut samples, &state.by);
    state.keys = attribute_keys(&samples);
    // The selected attribute stays available even if no context has it at the moment.
    for key in [plan.attribute.as_ref(), Some(&state.attribute)] {
        if let Some(key) = key.filter(|key| !key.is_empty() && !state.keys.contains(*key)) {
            state.keys.insert(0, key.clone());
        }
    }
    let is_known = plan.attribute.is_some() || !state.keys.is_empty();
    if is_known && !state.is_chosen {
        state.attribute = attribute(plan, &state.keys);
        if let By::Attribute(key) = &mut state.by {
            key.clone_from(&state.attribute);
        }
    }
    let mut function = |by: &By, stacks: &_| names.key(by, &feed.catalog, stacks);
    let mut rows = rows(&samples, &state.by, &state.attribute, &mut function);
    rows.iter_mut()
        .for_each(|row| row.present = window.waiting(&row.thread));
    rows.retain(|row| state.takes(row));
    sort(&mut rows, state.sort, state.reversed);
    state.follow(&rows);
    let opened = (!state.opened.is_empty()).then(|| {
        let source = Source {
            window,
            catalog: &feed.catalog,
            samples: &samples,
            attribute: &state.attribute,
            functions: &plan.functions,
            period: plan.period,
            kinds: plan.kinds,
        };
        let opened = Opened::of(&source, &state.opened, names);
        view::Opened {
            lines: opened.lines(&state.search),
            row: opened.row,
        }
    });
    let without_symbols = names.without_symbols(&feed.catalog, window);
    let without_symbols = without_symbols.line(window.samples() as usize);
    let limits = [
        feed.fewer_scans(),
        feed.incomplete_steps(),
        feed.contested_keys(),
    ];
    let hints = without_symbols.into_iter().chain(feed.node_contexts());
    let limits = limits.into_iter().flatten().chain(hints);
    let limits: Vec<String> = limits.chain(plan.limits.iter().cloned()).collect();
    Shown {
        values: times_by_value(&samples, &state.attribute),
        share: plan.share(window),
        cpus: plan.cpus,
        time: sum(&samples),
        idle,
        attached: attached(&samples),
        lost: window.counts().lost,
        not_traceable: window.counts().not_traceable,
        incomplete: feed.incomplete_stacks(),
        limits: limits.join("; "),
        opened,
        rows,
    }
}
