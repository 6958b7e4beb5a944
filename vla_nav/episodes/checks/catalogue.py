"""Every code of the data checks: severity, meaning, remedy. A code never changes its meaning.

D0 reading | D1 poses | D2 actions | D3 geometry | D4 identity | D5 frames | D6 scenes | D7 release
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class Code(NamedTuple):
    """What a code says of an episode or a set, and what to do about it."""

    severity: str
    meaning: str
    remedy: str


CODES: Mapping[str, Code] = MappingProxyType(
    {
        # Reading
        "D001": Code(
            "error",
            "an episode or file cannot be read",
            "mend what the example names, or obtain the file again",
        ),
        "D002": Code(
            "error",
            "the split has no episodes",
            "correct data.path, data.split or data.role, or obtain the files again",
        ),
        "D003": Code(
            "warning",
            "reading stopped at a fault, so the episodes after it were not checked",
            "mend the fault under D001 and run doctor again",
        ),
        # Poses
        "D101": Code(
            "error",
            "a rotation is not a unit quaternion",
            "divide it by its norm if the direction is right, else export the data again",
        ),
        "D102": Code(
            "error",
            "rotations look like wxyz: read as xyzw the agent lies on its side, as wxyz it stands",
            "write rotations as [x, y, z, w]",
        ),
        "D103": Code(
            "warning",
            "the agent is tilted, in either order of the quaternion",
            "rotations must turn about +Y alone; a camera's pitch belongs to the camera",
        ),
        "D104": Code(
            "error",
            "a number is NaN or infinite",
            "leave the episode out, or compute the value again",
        ),
        "D105": Code(
            "warning",
            "start headings differ from the path's first edge by one same angle, or in sign",
            "check the order (xyzw), the sign of the yaw and the axes (+Y up, -Z forward)",
        ),
        "D106": Code(
            "error",
            "start headings contradict the first movements of the ground truth",
            "use the release that the ground truth was made for (R2R-CE: v1-3)",
        ),
        # Actions
        "D201": Code(
            "error",
            "an episode has no ground-truth actions although others have",
            "use the gt file of the same split and role",
        ),
        "D202": Code(
            "info",
            "no episode has actions: episodes can be evaluated or recorded, not trained on",
            "put the gt file beside the episodes, or make actions with `vla-nav record`",
        ),
        "D203": Code(
            "error",
            "the ground truth is of another episode: it starts or ends elsewhere",
            "join by episode_id (not by position in the file) and take the gt of the same role",
        ),
        "D204": Code(
            "error",
            "ground-truth locations do not fit the actions",
            "there must be the start and one location after each MOVE_FORWARD",
        ),
        "D205": Code(
            "error",
            "STOP does not occur exactly once, at the end",
            "leave out episodes that were cut off; split those that go on after STOP",
        ),
        "D206": Code(
            "info",
            "movements leave the heading or stay short: the agent slid or was blocked",
            "nothing to mend; do not compute poses of such episodes from their actions",
        ),
        "D207": Code(
            "error",
            "positions move farther than the actions allow",
            "check the unit, the step length, and that poses and actions are of one episode",
        ),
        "D208": Code(
            "error",
            "headings do not follow the turns",
            "check the stated turn angle, the sign of turns, and that poses are before the action",
        ),
        "D209": Code(
            "error",
            "the turn angle seen in the data is not the stated one",
            "state the turn angle of the data, and evaluate with it",
        ),
        "D210": Code(
            "info",
            "the data set states no turn angle; the one seen in the data is given",
            "give it when the data is converted, and evaluate with it",
        ),
        "D211": Code(
            "error",
            "the step length seen in the data is not the stated one",
            "state the step length of the data (metres), and evaluate with it",
        ),
        "D212": Code(
            "info",
            "the data set states no step length; the one seen in the data is given",
            "give it when the data is converted, and evaluate with it",
        ),
        "D213": Code(
            "warning",
            "several turn angles or step lengths are mixed",
            "part the data set by turn angle and step length",
        ),
        "D214": Code(
            "error",
            "left and right are exchanged: TURN_LEFT turns clockwise",
            "exchange the two ids, or negate the yaw",
        ),
        "D215": Code(
            "warning",
            "the action prior is odd",
            "look at the shares: an action that never occurs cannot be learnt",
        ),
        "D216": Code(
            "warning",
            "label text is outside the grammar, so no action is taught there",
            "correct the text, or leave the step out",
        ),
        "D217": Code("error", "an action id is unknown", "ids are 0 STOP to 5 LOOK_DOWN"),
        "D218": Code(
            "warning",
            "some steps teach nothing: they have no expert label",
            "label them again, or accept that they are context only",
        ),
        "D219": Code(
            "error",
            "STOP is never taught: no label of the episode begins with it",
            "a policy trained on this does not stop; record or label the last step",
        ),
        "D220": Code(
            "error",
            "a label has not one pose per primitive",
            "label again: the poses are those after each primitive",
        ),
        "D221": Code(
            "warning",
            "two records of one step teach different actions",
            "keep the right one; both are contradictory targets of one state",
        ),
        "D222": Code(
            "warning",
            "the turn angle is neither stated nor to be seen: there are turns but no poses",
            "ask who made the data; convert and evaluate with that angle",
        ),
        # Geometry
        "D301": Code(
            "error",
            "the stored geodesic distance is shorter than the straight line",
            "compute it again: SPL divides by it",
        ),
        "D302": Code(
            "error",
            "the stored geodesic distance says that no goal can be reached",
            "leave the episode out of evaluation, or count it as the declared policy says",
        ),
        "D303": Code(
            "info",
            "every goal is 1.5 m or more above or below the start: another floor or level",
            "nothing to mend; look at maps per floor",
        ),
        "D304": Code(
            "warning",
            "the reference path ends outside the radius of every goal",
            "check that path and goals are of one episode",
        ),
        "D305": Code(
            "warning",
            "the reference path begins away from the start",
            "check that path and start are of one episode",
        ),
        "D306": Code(
            "info",
            "the start is within the success radius: STOP at once succeeds",
            "nothing to mend; report success at a smaller radius too",
        ),
        "D307": Code(
            "info",
            "episodes have no goals: success cannot be computed here",
            "use a split with goals, or send results to the benchmark's server",
        ),
        "D308": Code(
            "warning",
            "an episode is longer than 500 actions, the usual limit of evaluation",
            "raise the limit of steps, or leave the episode out",
        ),
        # Identity
        "D401": Code(
            "error",
            "an episode's key (dataset, split, role, episode_id) occurs more than once",
            "give ids of their own; results and ground truth are joined by them",
        ),
        "D402": Code(
            "warning",
            "an episode repeats another under a second id",
            "leave one of them out; repeated episodes weigh double",
        ),
        "D403": Code(
            "error",
            "an episode says that it is of another split or data set",
            "use the file of the split that was asked for",
        ),
        "D404": Code(
            "error",
            "an episode is of another role than it is read as",
            "use the file and the gt of the role that was asked for",
        ),
        "D405": Code(
            "warning",
            "the text is not in the script of the stated language",
            "correct the language tag or the text",
        ),
        "D406": Code(
            "info",
            "several languages are in one set",
            "report per language; RxR-CE's test is on its English guides",
        ),
        "D407": Code(
            "error",
            "an instruction is empty although others are not",
            "obtain the text, or leave the episode out",
        ),
        "D408": Code(
            "error",
            "an episode is also in a split it is compared with",
            "leave it out of one of the two",
        ),
        "D409": Code(
            "error",
            "an unseen split has scenes of the split it is compared with",
            "leave these scenes out of training, or do not call the split unseen",
        ),
        "D410": Code(
            "info",
            "duplicates and leaks were looked for among the first episodes only, to bound memory",
            "check the set in parts",
        ),
        "D411": Code(
            "warning",
            "several roles (guide, follower) are in one set",
            "report per role: set data.role; gt files of roles are not interchangeable",
        ),
        # Frames
        "D501": Code(
            "error",
            "frames and steps do not match: a step lacks a frame, or frames are left over",
            "copy the missing images, or leave the episode out",
        ),
        "D502": Code(
            "error",
            "a frame cannot be read",
            "copy the file again; check the index of the file and of the frame",
        ),
        "D503": Code(
            "error",
            "two episodes take the same frames of a video: offsets overlap",
            "use the video's own file index and offsets, not those of the data files",
        ),
        "D504": Code(
            "warning",
            "video offsets are not in the order of the episodes",
            "nothing to mend if frames are right: look at the first frame of an example",
        ),
        "D505": Code(
            "error",
            "the frames of an episode go back in their video",
            "sort frames by number (frame_10 comes after frame_9)",
        ),
        "D506": Code(
            "error",
            "a camera is impossible: field of view outside 1 to 179 degrees, or no pixels",
            "state the camera's real hfov_deg and size; use several cameras for wider views",
        ),
        "D507": Code(
            "error",
            "frames have another size than their camera",
            "state the size of the recorded frames",
        ),
        "D508": Code(
            "warning",
            "a frame is of one colour",
            "look at it: a camera outside the scene, in a wall, or without light",
        ),
        "D509": Code(
            "error",
            "the frames that an episode takes of a video fit neither its length nor the video",
            "use the video's own file index, offsets and fps; copy a video that was cut short",
        ),
        # Scenes
        "D601": Code(
            "error",
            "scenes are missing from the scenes folder",
            "obtain them (data/README.md), or correct doctor.scenes",
        ),
        "D602": Code(
            "info",
            "no scenes folder: scenes and reachability were not checked",
            "set doctor.scenes where episodes are to be evaluated",
        ),
        "D603": Code(
            "warning",
            "scene ids are not relative to the scenes folder",
            "strip `data/scene_datasets/` and the like from scene_id",
        ),
        "D604": Code(
            "error",
            "no goal can be reached from the start in the scene",
            "leave the episode out of evaluation, or count it as the declared policy says",
        ),
        "D605": Code(
            "warning",
            "a scene cannot be tried: it does not load, or starts are not on its floor",
            "check the scene file and simulators.options.up_axis (raw MP3D meshes are Z up: z)",
        ),
        "D606": Code(
            "info",
            "a scene has no navigation mesh beside it: habitat-sim computes one for the agent",
            "download the data set's .navmesh files where numbers are to be compared with others'",
        ),
        # Release
        "D701": Code(
            "error",
            "this looks like R2R-CE v1 or v1-2, whose start headings are wrong",
            "use R2R_VLNCE_v1-3_preprocessed",
        ),
        "D702": Code(
            "warning",
            "the split is not complete: the release has another number of episodes or scenes",
            "obtain the file again, or say that results are on a part",
        ),
    }
)
