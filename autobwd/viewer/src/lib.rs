//! Self-contained HTML pages: programs, as rows of operators with the story of every gradient and the memory plan, and
//! training runs, as curves and records ([`RunReport`]).
//!
//! Must not run anything. Steps of a program's page, in call order: `layout` (the column and row of every operator) →
//! `tables` (with `compare`: differences from an older program) → `memory` → `stories` → `tree` (rows that fold, with
//! `repeats`) → `data`. `assembly` makes both pages.
//!
//! The script of a page draws the lines in view only, and assigns them to columns by interval colouring. It composes no
//! text about gradients: `stories` embeds what `explain` says. A page requests nothing, and names cannot leave its
//! data; `tests/viewer` checks both in a browser.

mod assembly;
mod compare;
mod data;
mod layout;
mod memory;
mod notebook;
mod repeats;
mod report;
mod stories;
mod tables;
mod texts;
mod tree;

use std::fmt;

use autobwd_core::{Meta, Program, Result};

use assembly::Template;
use data::Data;
pub use report::{ReportedDifference, ReportedRecord, ReportedSegment, RunReport, SegmentVerdict};

const TEMPLATE: Template = Template {
    html: include_str!("page/page.html"),
    style: concat!(include_str!("shared/theme.css"), include_str!("page/page.css")),
    script: concat!(
        include_str!("shared/elements.js"),
        include_str!("page/model.js"),
        include_str!("page/lanes.js"),
        include_str!("page/rows.js"),
        include_str!("page/memory.js"),
        include_str!("page/story.js"),
        include_str!("page/main.js"),
    ),
};

/// A program as one self-contained HTML page.
///
/// Forward operators stand on the left, their gradient operators in the same rows on the right, and updates below. The
/// page folds, searches, and tells what a value is and how a gradient is computed
/// ([`explain`](autobwd_backward::explain)). It loads nothing and sends nothing: its Content-Security-Policy forbids
/// everything but its own script and style. A button saves the rows as SVG.
///
/// ```
/// # use autobwd::{Backward, Builder, DType, append_backward};
/// # use autobwd_ops::{Init, Math};
/// use autobwd::{Meta, viewer::Page};
///
/// let net = Builder::new();
/// let x = net.input("x", DType::F32, &[-1, 3]);
/// let w = net.parameter("w", DType::F32, &[3], |w| Init::Constant(3.0).emit(w, 0));
/// let loss = (&x * &w).square().mean();
/// let model = net.program()?.clone();
/// let mut program = model.clone();
/// append_backward(&mut program, &loss.name(), &Backward::default())?;
///
/// let feeds = [("x", Meta::new(DType::F32, [100, 3]))];
/// let html = Page::new(&program).title("A small model").feeds(&feeds).compare_with(&model).to_html()?;
/// assert!(html.starts_with("<!doctype html>"));
/// # Ok::<(), autobwd::Error>(())
/// ```
#[must_use]
pub struct Page<'a> {
    program: &'a Program,
    title: &'a str,
    feeds: Option<&'a [(&'a str, Meta)]>,
    old: Option<&'a Program>,
}

impl fmt::Debug for Page<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = f.debug_struct("Page");
        text.field("title", &self.title).field("feeds", &self.feeds).finish_non_exhaustive()
    }
}

impl<'a> Page<'a> {
    /// The page of a program.
    pub fn new(program: &'a Program) -> Page<'a> {
        Page { program, title: "Program", feeds: None, old: None }
    }

    /// Sets the title.
    pub fn title(self, title: &'a str) -> Page<'a> {
        Page { title, ..self }
    }

    /// Shows the memory plan for feeds of these dtypes and shapes. Variables of the scope have their declared shapes;
    /// shapes that are not known are also given here.
    ///
    /// If the program cannot be planned, because its operators are not linked for example, the page says why.
    pub fn feeds(self, feeds: &'a [(&'a str, Meta)]) -> Page<'a> {
        Page { feeds: Some(feeds), ..self }
    }

    /// Marks the differences from an older program: operators that were added, removed, changed and moved.
    /// Operators are matched by the variables they write, as [`diff`](autobwd_core::diff) does.
    pub fn compare_with(self, old: &'a Program) -> Page<'a> {
        Page { old: Some(old), ..self }
    }

    /// The page.
    ///
    /// # Errors
    /// A program whose blocks are malformed: cyclic, missing, or nested too deep.
    pub fn to_html(&self) -> Result<String> {
        TEMPLATE.fill(self.title, &Data::of(self)?)
    }
}

/// Programs and training runs that can be shown.
///
/// In a notebook whose cells are Rust, a program or a page at the end of a cell is shown below it, where this trait is
/// imported.
pub trait ToHtml {
    /// The program as a [`Page`].
    ///
    /// ```
    /// use autobwd::prelude::*;
    ///
    /// assert!(Program::new().to_html()?.contains("<title>Program</title>"));
    /// # Ok::<(), autobwd::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`Page::to_html`].
    fn to_html(&self) -> Result<String>;

    /// The page as an element of another page, such as a notebook.
    ///
    /// ```
    /// use autobwd::prelude::*;
    ///
    /// assert!(Program::new().to_inline_html()?.starts_with("<iframe srcdoc="));
    /// # Ok::<(), autobwd::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`to_html`](ToHtml::to_html).
    fn to_inline_html(&self) -> Result<String> {
        self.to_html().map(|page| notebook::inline(&page))
    }

    /// Shows the page below the cell of a notebook: evcxr, the kernel of Rust for Jupyter, calls this method of a value at
    /// the end of a cell. A page that cannot be made is a line on standard error.
    fn evcxr_display(&self) {
        let shown = self.to_inline_html().map_err(|e| e.to_string());
        let shown = shown.and_then(|html| notebook::display(&html).map_err(|e| e.to_string()));
        if let Err(e) = shown {
            eprintln!("the page cannot be shown: {e}");
        }
    }
}

impl ToHtml for Page<'_> {
    fn to_html(&self) -> Result<String> {
        Page::to_html(self)
    }
}

impl ToHtml for RunReport {
    fn to_html(&self) -> Result<String> {
        RunReport::to_html(self)
    }
}

impl ToHtml for Program {
    fn to_html(&self) -> Result<String> {
        Page::new(self).to_html()
    }
}
