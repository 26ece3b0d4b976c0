//! Parts of `/state.json` that are tables, such as of slow requests. The page and `cashew top` show
//! whatever sections there are.

use crate::json::{Json, Object};
use crate::source::Source;

/// Rows shown of a section. More of them tell nobody more.
pub(crate) const ROWS_MAX: usize = 100;

/// A table that others fill.
pub trait Section: Send + Sync {
    /// A word, which is its title too, such as `slow`.
    fn name(&self) -> &'static str;
    fn columns(&self) -> &'static [Column];
    /// What is most important first; each has a cell for each column.
    fn rows(&self, source: &Source) -> Vec<Vec<Cell>>;

    /// Whether there is such a table at all.
    fn is_there(&self, _: &Source) -> bool {
        true
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    pub name: &'static str,
    pub unit: Unit,
}

/// How the numbers of a column are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Text,
    Count,
    Bytes,
    Microseconds,
    /// Since 1970, in milliseconds.
    Time,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cell {
    Text(String),
    Number(u64),
    Nothing,
}

impl Unit {
    fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Count => "count",
            Self::Bytes => "bytes",
            Self::Microseconds => "us",
            Self::Time => "time",
        }
    }
}

/// As `/state.json` has it.
pub(crate) fn table<'a>(section: &dyn Section, source: &Source) -> Object<'a> {
    let column = |column: &Column| {
        let mut object = Object::default();
        object.insert("name", column.name);
        object.insert("unit", column.unit.name());
        object
    };
    let cell = |cell: Cell| match cell {
        Cell::Text(text) => Json::Text(text.into()),
        Cell::Number(number) => Json::Number(number),
        Cell::Nothing => Json::Null,
    };
    let row = |cells: Vec<Cell>| Json::List(cells.into_iter().map(cell).collect());
    let rows = section.rows(source).into_iter().take(ROWS_MAX);
    let mut object = Object::default();
    object.insert("name", section.name());
    object.insert("columns", section.columns().iter().map(column).collect::<Json<'_>>());
    object.insert("rows", Json::List(rows.map(row).collect()));
    object
}
