//! Reads columns and prints the number of rows: `arrow DIR EVENTS COLUMN,COLUMN`. Its cost is measured from outside.

use std::path::Path;

use dormouse_columns::{Batches, Layout, Request};
use dormouse_reader::TraceFiles;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, dir, events, columns] = arguments.as_slice() else { return Err("arrow DIR EVENTS COLUMN,COLUMN".into()) };
    let files = TraceFiles::open(Path::new(dir)).map_err(|error| error.to_string())?;
    let columns = columns.split(',').map(String::from).collect();
    let request = Request { events: vec![events.clone()], columns: Some(columns), ..Request::default() };
    let layout = Layout::new(&files.traces().collect::<Vec<_>>(), &request)?;
    let rows = std::thread::scope(|scope| {
        let streams = files.chosen(scope, layout.times(), |trace| Some(layout.choice(trace)));
        Batches::of(&layout, streams).try_fold(0, |rows, batch| Ok(rows + batch?.num_rows()))
    });
    println!("{} rows", rows.map_err(|error: arrow_schema::ArrowError| error.to_string())?);
    Ok(())
}
