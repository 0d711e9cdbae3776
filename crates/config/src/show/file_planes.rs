//! `file_plane` of a pool, as it is shown.

use super::super::file_plane::FilePlane;
use super::super::units::show_duration;
use super::{RenderedTable, path};

pub(super) fn put(table: &mut RenderedTable, plane: Option<&FilePlane>) {
    let Some(plane) = plane else { return };
    let FilePlane {
        dir,
        answers,
        answers_as,
        owner,
        max_open,
        poll,
    } = plane;
    table.put("file_plane.dir", path(dir));
    table.put("file_plane.answers", *answers);
    table.put("file_plane.answers_as", answers_as.to_string());
    table.put_optional("file_plane.owner", owner.map(i64::from));
    let max_open = i64::try_from(*max_open).unwrap_or(i64::MAX);
    table.put("file_plane.max_open", max_open);
    table.put("file_plane.poll", show_duration(*poll));
}
