//! The site's policy: which policy of the file it is.
//!
//! Owns that a site has one policy. Must not read a policy.

use super::table::Section;

/// Records that a policy is the site's, if its table says so. At most one can be.
pub(super) fn read(table: &Section<'_>, name: &str, site: &mut Option<String>) {
    let Some(found) = table.boolean("site").filter(|found| found.value) else {
        return;
    };
    match site {
        Some(other) => {
            let message = format!("the site's policy is {other:?} already");
            let help = "leave `site = true` at one, and let that extend the others".to_owned();
            table.diagnostics.report(&found.place, &message, Some(help));
        }
        None => *site = Some(name.to_owned()),
    }
}
